#!/usr/bin/env bash
# Clean and dirty on disk: clean when idle, dirty before the first write is done, and after a power cut in the middle of
# writes the next boot puts parity right and has everything that was flushed. Dirty and degraded needs --force.
# The power cut restarts the guest, which runs this script again: a file on the host says how far it was.
# bed: uml
# time: 240
# mem: 4G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need cut fio mdadm || exit 0
KEEP=$REPO/target/e2e-power-cut
clean() { raidctl examine --output json "$1" | grep -q '"clean": true'; }
dirty() { raidctl examine --output json "$1" | grep -q '"clean": false'; }
events() { raidctl examine --output json "$1" | json events; }
# attach: loop devices over the files that outlive the guest.
attach() {
  local i dev
  MEMBERS=()
  for i in 0 1 2 3; do dev=$(losetup --show -f "$KEEP/$1.$i") || return 1; MEMBERS+=("$dev") LOOPS+=("$dev"); done
}
phase=$(cat "$KEEP/phase" 2> /dev/null)

if [ -z "$phase" ]; then
  check members loop_members 4 64M
  check daemon start_daemon
  check create create_array 5 --name safe "${MEMBERS[@]}"
  check resync wait_resync
  check idle-is-clean soon clean "${MEMBERS[0]}"
  for member in "${MEMBERS[@]}"; do check "clean-$(basename "$member")" clean "$member"; done
  check mdadm-says-clean bash -c "mdadm --examine ${MEMBERS[1]} | grep -q 'State : clean'"
  idle=$(events "${MEMBERS[0]}")
  sleep 1
  equal idle-writes-nothing "$idle" "$(events "${MEMBERS[0]}")"
  dd if="$ARRAY_DEV" of=/dev/null bs=1M count=4 iflag=direct status=none
  equal reads-write-nothing "$idle" "$(events "${MEMBERS[0]}")"
  fio --name=busy --filename="$ARRAY_DEV" --direct=1 --ioengine=libaio --iodepth=4 --rw=randwrite --bs=16k --size=32M --time_based --runtime=4 > "$WORK/fio.out" 2>&1 &
  LOAD=$!
  sleep 1.5
  for member in "${MEMBERS[@]}"; do check "dirty-$(basename "$member")" dirty "$member"; done
  check mdadm-says-active bash -c "mdadm --examine ${MEMBERS[1]} | grep -q 'State : active'"
  busy=$(events "${MEMBERS[0]}")
  [ "$busy" -gt "$idle" ] && ok events-grow || not_ok events-grow "$idle, then $busy"
  check load finish_load
  check clean-again soon clean "${MEMBERS[3]}"
  [ "$(events "${MEMBERS[0]}")" -le $((idle + 6)) ] && ok few-records || not_ok few-records "events went from $idle to $(events "${MEMBERS[0]}") for one burst"
  equal events-agree 1 "$(for m in "${MEMBERS[@]}"; do events "$m"; done | sort -u | wc -l)"
  check stop stop_array
  check clean-after-stop clean "${MEMBERS[2]}"
  check parity parity_right
  for dev in "${LOOPS[@]}"; do losetup -d "$dev"; done; LOOPS=(); rm -rf "$WORK/members"

  # --- the power cut ----------------------------------------------------------------------------------------------
  mkdir -p "$KEEP"
  # Only a folder of the host outlives the guest; without one the guest would go round in circles.
  [ "$(findmnt -no FSTYPE -T "$KEEP")" = hostfs ] || { skip power-cut "nothing here outlives the guest"; exit; }
  rm -f "$KEEP"/*
  for i in 0 1 2 3; do truncate -s 48M "$KEEP/cut.$i"; done
  echo 1 > "$KEEP/phase"; sync
  check cut-members attach cut
  check cut-create create_array 5 --name cut "${MEMBERS[@]}"
  check cut-resync wait_resync
  check cut-put put "$ARRAY_DEV" $((100 << 20)) 21 5000192
  fio --name=cut --filename="$ARRAY_DEV" --direct=1 --ioengine=libaio --iodepth=16 --numjobs=2 --rw=randwrite --bsrange=4k-256k --size=48M --offset_increment=48M --time_based --runtime=60 > /dev/null 2>&1 &
  sleep 3
  check cut-put-flushed put "$ARRAY_DEV" $((106 << 20)) 22 5000192
  check cut-dirty dirty "${MEMBERS[0]}"
  say "power cut"
  sleep 0.3
  [ $FAILED -eq 0 ] || { rm -rf "$KEEP"; exit 1; }
  echo b > /proc/sysrq-trigger
  sleep 60
  rm -rf "$KEEP"
  not_ok power-cut "the guest is still here"
  exit 1
fi

# --- after it -------------------------------------------------------------------------------------------------------
ok power-came-back
check back-attach attach cut
mkdir "$WORK/copies" && cp --sparse=always "$KEEP"/cut.* "$WORK/copies/"
for dev in "${LOOPS[@]}"; do losetup -d "$dev"; done; LOOPS=()
rm -rf "$KEEP"
KEEP=$WORK/copies
check back-copies attach cut
check back-dirty dirty "${MEMBERS[0]}"
check back-daemon start_daemon

# Dirty and a member short: refused, unless forced; what was flushed is then there all the same.
three=("${MEMBERS[@]:0:3}")
refused dirty-degraded 1 'force' raidctl assemble "${three[@]}"
check dirty-degraded-writes-nothing dirty "${MEMBERS[0]}"
check dirty-degraded-read-only-refused bash -c "! raidctl assemble --readonly ${three[*]}"

check back-assemble raidctl assemble "${MEMBERS[@]}"
ARRAY_DEV=/dev/ublkb0
raidctl detail --output json cut | tr -d ' \n' | grep -q '"resync":{' && ok back-resyncs || { grep -q 'parity is in sync array=cut' "$LOG" && ok back-resyncs || not_ok back-resyncs "no resync after a power cut"; }
check back-flushed same "$ARRAY_DEV" $((100 << 20)) 21 5000192
check back-flushed-too same "$ARRAY_DEV" $((106 << 20)) 22 5000192
before=$(sum "$ARRAY_DEV")
check back-resync wait_resync
equal resync-changes-no-data "$before" "$(sum "$ARRAY_DEV")"
check back-clean soon clean "${MEMBERS[0]}"
check back-stop stop_array
check back-parity parity_right
equal back-md "$before" "$(with_md sum /dev/md127)"

# Forced while dirty and degraded: killed in the middle of writes, then one member short.
check force-assemble raidctl assemble "${MEMBERS[@]}"
check force-put put "$ARRAY_DEV" $((64 << 20)) 31 5000192
fio --name=force --filename="$ARRAY_DEV" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=64k --size=32M --time_based --runtime=30 > /dev/null 2>&1 &
sleep 1.5
check force-daemon crash_daemon
refused force-needed 1 'force' raidctl assemble "${three[@]}"
check force raidctl assemble --force "${three[@]}"
equal force-degraded 1 "$(field degraded cut)"
check force-data same "$ARRAY_DEV" $((64 << 20)) 31 5000192
check force-stop stop_array
check force-md bash -c "mdadm --examine ${three[0]} | grep -q 'Array State : AAA\.'"
check force-once clean "${three[1]}"
check force-no-more raidctl assemble "${three[@]}"
check force-stop-again raidctl stop cut
MEMBERS=("${three[@]}")
check force-md-data with_md same /dev/md127 $((64 << 20)) 31 5000192
check daemon-ends stop_daemon
