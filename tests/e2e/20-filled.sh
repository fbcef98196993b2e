#!/usr/bin/env bash
# Arrays made by raidctl and filled through their block device, also while the first resync runs: fio and the pattern read
# back right, md finds no wrong parity and the same data, with every member missing (5, 6) and every pair (6).
# bed: uml
# time: 480
# mem: 8G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/interop.sh"

need filled pattern mdadm fio || exit 0
check daemon start_daemon
check loops loop_members 7 32M
check nvme nvme_loop "${MEMBERS[@]}"

by_fio() { # LEVEL: four jobs apart, then four jobs in the same stripes, crc32c
  create_array "$1" --name "filled$1" --force "${MEMBERS[@]}" || return 1
  IO_SIZE=32m "$REPO/fio-jobs/run" verify "$ARRAY_DEV" || return 1
  IO_SIZE=20m "$REPO/fio-jobs/run" verify-interleaved "$ARRAY_DEV" || return 1
  wait_resync
}
hand_over() { dd if="$ARRAY_DEV" of="$WORK/image" bs=4M iflag=direct status=none && stop_array; }
by_pattern() {
  assemble "${MEMBERS[@]}" && pattern write "$ARRAY_DEV" && pattern verify "$ARRAY_DEV" || return 1
  pattern scatter "$ARRAY_DEV" --seed 2 --jobs 16 && pattern scatter "$ARRAY_DEV" --seed 3 --jobs 16 || return 1
  pattern verify "$ARRAY_DEV" --over 2 --over 3 && stop_array
}

for level in 0 5 6; do
  check "$level-fio" by_fio $level || exit 1
  check "$level-stop" hand_over
  check "$level-md-same" md_check cmp "$WORK/image" $MD
  [ $level = 0 ] || check "$level-md-same-without-each" every 1 cmp "$WORK/image" $MD
  check "$level-pattern" by_pattern
  check "$level-md-pattern" md_check pattern verify $MD --over 2 --over 3
  [ $level = 0 ] || check "$level-md-pattern-without-every" every $((level - 4)) pattern verify $MD --over 2 --over 3
done
