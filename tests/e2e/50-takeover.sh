#!/usr/bin/env bash
# The daemon may die at any instant: killed with -9 again and again under fio's verifying load on mounted file systems, the next
# raidd goes on with the same device. Nobody above sees an error, parity is right without a resync, nothing is lost.
# RAIDD_KILLS: kills per array (default 10).
# bed: uml
# time: 240
# mem: 8G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"
. "$(dirname "$0")/takeover.sh"

need takeover fio mkfs.xfs mkfs.ext4 mdadm || exit 0
KILLS=${RAIDD_KILLS:-10}
MIB=128

check members members 6
NODES=("${MEMBERS[@]}")
check daemon start_daemon

# Degraded reads of MD are slow in the bed.
sum_front() { dd if="$1" bs=4M count=40 iflag=direct status=none | sha256sum | cut -d ' ' -f 1; }

# one LEVEL MEMBERS FS LOST...: LOST are slots that fail before the kills.
one() {
  local level=$1 count=$2 fs=$3 tag slot data before; shift 3
  local lost=("$@") all kept=()
  tag=$level-$fs-${#lost[@]}lost
  check "wrap-$tag" dm_wrap $MIB "${NODES[@]:0:count}" || return
  all=("${MEMBERS[@]}")
  check "create-$tag" create_array "$level" --name t --force "${MEMBERS[@]}" || return
  check "resync-$tag" wait_resync t
  for slot in "${lost[@]}"; do
    check "fail-$tag-$slot" dm_error "$slot"
    dd if=/dev/zero of="$ARRAY_DEV" bs=1M count=32 oflag=direct status=none
  done
  equal "lost-$tag" "${#lost[@]}" "$(field degraded t)"
  check "mkfs-$tag" make_fs "$fs" "$ARRAY_DEV" || return
  mkdir -p "$WORK/mnt"; check "mount-$tag" mount "$ARRAY_DEV" "$WORK/mnt" || return
  tar -C "$REPO/raidd" -cf - src | tar -C "$WORK/mnt" -xf -; sync
  before=$(tree_sums "$WORK/mnt/src" | cksum)

  under_kills "$tag" "$KILLS"
  check "fio-$tag" finish_verify
  equal "device-$tag" "$ARRAY_DEV" "$(raidctl detail --output json t | json device)"
  equal "no-resync-$tag" 0 "$(grep -c 'parity is in sync' "$WORK/since.log")"
  equal "degraded-$tag" "${#lost[@]}" "$(field degraded t)"
  echo 3 > /proc/sys/vm/drop_caches
  equal "tree-$tag" "$before" "$(tree_sums "$WORK/mnt/src" | cksum)"
  check "umount-$tag" umount "$WORK/mnt"
  check "fsck-$tag" check_fs "$fs" "$ARRAY_DEV"
  data=$(sum_front "$ARRAY_DEV")
  check "stop-$tag" stop_array t
  for slot in "${!all[@]}"; do [[ " ${lost[*]} " == *" $slot "* ]] || kept+=("${all[slot]}"); done
  if [ ${#lost[@]} -eq 0 ]; then
    check "parity-$tag" parity_right
    # A member can be spared: what was written is in the parity, too.
    slot=$((RANDOM % count))
    kept=("${all[@]}"); unset "kept[$slot]"; MEMBERS=("${kept[@]}")
    equal "md-without-$slot-$tag" "$data" "$(with_md sum_front /dev/md127)"
  else
    MEMBERS=("${kept[@]}")
    equal "md-$tag" "$data" "$(with_md sum_front /dev/md127)"
  fi
  MEMBERS=("${all[@]}")
  for slot in "${lost[@]}"; do dm_heal "$slot"; done
  dm_remove
}

one 6 6 xfs
one 5 4 ext4
one 6 6 ext4 1 4
one 5 4 xfs 2
check daemon-ends stop_daemon
