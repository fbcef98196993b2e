#!/usr/bin/env bash
# Power cuts at any instant of a real load: the members are recorded in one order while versions are written to a RAID 5
# and to a file system on a RAID 6, and images are made of what a cut may leave: unflushed writes lost at random, torn,
# each member by itself. raidctl and mdadm open each image, find what had been flushed, and end with right parity.
#
# By hand, with every flush boundary: RAIDD_CUTS=1000 RAIDD_CUT_FLUSHES=all RAIDD_CUT_SECONDS=20, and a longer time limit.
# bed: uml
# time: 120
# mem: 5G
# append: brd.rd_size=65536
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"
. "$(dirname "$0")/interop.sh"
. "$(dirname "$0")/powercut.sh"

need cut powercut fio mdadm mkfs.ext4 || exit 0
test -b /dev/nbd0 || { skip cut "no network block devices here"; exit 0; }
CUTS=3 FLUSHES=3

# record NAME LEVEL MEMBERS MIB: an array, the load, the recording.
record() {
  local name=$1 target
  LEVEL=$2
  check "$name-members" recorded "$3" "$4" || return 1
  check "$name-create" create_array "$LEVEL" --name "$name" "${MEMBERS[@]}" || return 1
  check "$name-resync" wait_resync
  target=$ARRAY_DEV
  if [ -n "$FS" ]; then
    check "$name-mkfs" make_fs "$FS" "$ARRAY_DEV" || return 1
    target=$MNT
    fio --name=beside --directory="$MNT" --size=12M --rw=randrw --bsrange=4k-128k --fsync=24 --rate=3m,3m --time_based --runtime="$CUT_SECONDS" \
      --verify=crc32c --verify_state_save=0 > "$WORK/fio.out" 2>&1 &
    LOAD=$!
  fi
  tell mark armed
  check "$name-load" powercut write "$target" --socket "$SAY" --seconds "$CUT_SECONDS" --seed "$SEED" --mib "$JOB_MIB" --unit "$TEAR"
  [ -z "$FS" ] || check "$name-fio" finish_load
  tell mark over
  { [ -z "$FS" ] || umount "$MNT"; } && check "$name-stop" stop_array
  check "$name-end" recorded_end
}

check daemon start_daemon

FS= TEAR=512 JOB_MIB=24
if record raw5 5 4 32; then
  sets 4
  found_out raw5 by_md
  cut_all raw5 by_raidctl by_md
fi

FS=ext4 TEAR=4096 JOB_MIB=12
if record ext6 6 5 48; then
  sets 5
  cut_all ext6 by_raidctl by_md
fi
check daemon-ends stop_daemon
