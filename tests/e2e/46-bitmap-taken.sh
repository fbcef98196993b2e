#!/usr/bin/env bash
# A dirty MD array with a bitmap, as a crash of the machine leaves it, is taken by raidd: only what its bitmap names is resynced;
# then the same of raidd's own, twice over, with the bits of a crash in the middle of that resync.
# bed: uml
# time: 150
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need fio mdadm || exit 0
DIR=$WORK/members
garbage() { # MEMBER BYTE: 4 KiB of it
  dd if=/dev/urandom of="$1" bs=4096 count=1 oflag=direct,seek_bytes seek="$2" conv=notrunc status=none
}
dirty_bits() { mdadm -X "$1" | sed -nE 's/.*chunks\), ([0-9]+) dirty.*/\1/p'; }
resynced() { grep -oE 'parity is in sync.*repaired_bands=[0-9]+' "$LOG" | tail -n 1 | grep -oE '[0-9]+$'; }

for level in 5 6; do
  check "members-$level" loop_members 5 256M
  mdadm --create /dev/md127 --run --assume-clean --metadata=1.2 --level=$level --chunk=64 --raid-devices=5 --bitmap=internal --bitmap-chunk=1M "${MEMBERS[@]}" > "$WORK/md.out" 2>&1 \
    && ok "md-create-$level" || { not_ok "md-create-$level" "$(tail -n 1 "$WORK/md.out")"; exit 1; }
  # The bits of the creation go when the array has been idle for a while.
  for _ in {1..60}; do [ "$(dirty_bits "${MEMBERS[0]}")" = 0 ] && break; sleep 0.5; done
  equal "md-idle-$level" 0 "$(dirty_bits "${MEMBERS[0]}")"
  # Stays dirty after the last write, so that a copy of the members is what a crash leaves.
  echo 100 > /sys/block/md127/md/safe_mode_delay
  check "md-put-$level" put /dev/md127 $((8 << 20)) 7 4194304
  check "md-put-too-$level" put /dev/md127 $((300 << 20)) 8 1048576
  sync
  mkdir -p "$WORK/crash" && rm -f "$WORK/crash"/* && cp --sparse=always "$DIR"/* "$WORK/crash/"
  check "md-stop-$level" md_stop
  for dev in "${LOOPS[@]}"; do losetup -d "$dev"; done; LOOPS=(); rm -f "$DIR"/*
  MEMBERS=()
  for file in $(ls "$WORK/crash" | sort -n); do
    dev=$(losetup --show -f "$WORK/crash/$file"); MEMBERS+=("$dev") LOOPS+=("$dev")
  done
  bits=$(dirty_bits "${MEMBERS[1]}")
  [ "$bits" -ge 2 ] && [ "$bits" -lt 20 ] && ok "crash-bits-$level" || not_ok "crash-bits-$level" "$bits"
  first=$(($(mdadm --examine "${MEMBERS[4]}" | awk '/Data Offset/ { print $4 }') * 512))
  # Stripe 40, in what was written at 8 MiB; and stripe 3000, where no bit is. On level 5 both have their parity on member 4.
  garbage "${MEMBERS[4]}" $((first + 40 * 65536))
  garbage "${MEMBERS[4]}" $((first + 3000 * 65536))
  check "daemon-$level" start_daemon
  check "assemble-$level" raidctl assemble "${MEMBERS[@]}"
  ARRAY_DEV=/dev/ublkb0
  check "resync-$level" wait_resync
  # The bands of one read count together.
  [ "$(resynced)" -ge 1 ] && [ "$(resynced)" -le 8 ] && ok "repaired-$level" || not_ok "repaired-$level" "$(resynced)"
  check "data-$level" same "$ARRAY_DEV" $((8 << 20)) 7 4194304
  check "stop-$level" stop_array
  check "daemon-ends-$level" stop_daemon
  equal "bits-cleared-$level" 0 "$(dirty_bits "${MEMBERS[2]}")"
  check "md-$level" md_assemble "${MEMBERS[@]}"
  equal "only-dirty-$level" 8 "$(md_mismatches)"
  check "md-stop-again-$level" md_stop
  for dev in "${LOOPS[@]}"; do losetup -d "$dev"; done; LOOPS=()
done
