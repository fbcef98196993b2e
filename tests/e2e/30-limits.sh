#!/usr/bin/env bash
# Sizes at their edges: 3 to 32 members, sectors of 4096 bytes, arrays past 2 TiB and 16 TiB, requests of odd and of
# large sizes, discard and write-zeroes. What was written is read back through raidd and through md, also from parity.
# bed: uml
# time: 300
# mem: 5G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need limits mdadm losetup blkdiscard || exit 0
loops_off() { local l; for l in "${LOOPS[@]}"; do losetup -d "$l"; done; LOOPS=(); rm -rf "$WORK/members"; }

# write_places SEED PLACE...: LENGTH bytes at each place of the array, different everywhere. read_places DEVICE SEED PLACE...
write_places() { local seed=$1 at; shift; for at in "$@"; do put "$ARRAY_DEV" "$at" "$((seed + at / 65536))" "$LENGTH" || return 1; done; }
read_places() { local dev=$1 seed=$2 at; shift 2; for at in "$@"; do same "$dev" "$at" "$((seed + at / 65536))" "$LENGTH" || { say "at $at"; return 1; }; done; }

# --- how many members ---------------------------------------------------------------------------------------------
check daemon start_daemon
LENGTH=4999680   # a multiple of 512, not of 4096
for shape in 5:3 6:4 5:5 6:12 5:32 6:32; do
  level=${shape%:*} count=${shape#*:} name=n$count-l$level
  check "members-$name" loop_members "$count" 24M || continue
  check "create-$name" create_array "$level" --name "$name" "${MEMBERS[@]}" || continue
  size=$(blockdev --getsize64 "$ARRAY_DEV")
  places=(0 $((size / 2 / 512 * 512)) $((size - LENGTH)))
  check "write-$name" write_places 7 "${places[@]}"
  check "resync-$name" wait_resync
  check "read-$name" read_places "$ARRAY_DEV" 7 "${places[@]}"
  check "stop-$name" stop_array
  check "md-size-$name" with_md bash -c "[ \$(blockdev --getsize64 /dev/md127) = $size ]"
  check "md-$name" with_md read_places /dev/md127 7 "${places[@]}"
  check "parity-$name" parity_right
  loops_off
done

# --- 4096-byte sectors --------------------------------------------------------------------------------------------
LENGTH=4997120   # a multiple of 4096
check members-4k loop_members 4 32M --sector-size 4096
check create-4k create_array 6 --name fourk "${MEMBERS[@]}"
equal block-4k 4096 "$(blockdev --getss "$ARRAY_DEV")"
check put-4k put "$ARRAY_DEV" 4096 1 4096
check same-4k same "$ARRAY_DEV" 4096 1 4096
refused put-512-on-4k 1 'Invalid argument' put "$ARRAY_DEV" 4096 1 512
size=$(blockdev --getsize64 "$ARRAY_DEV")
places=(0 $((size / 2 / 4096 * 4096 + 4096)) $((size - LENGTH)))
check write-4k write_places 7 "${places[@]}"
check read-4k read_places "$ARRAY_DEV" 7 "${places[@]}"
check resync-4k wait_resync
check stop-4k stop_array
check md-4k with_md read_places /dev/md127 7 "${places[@]}"
check parity-4k parity_right
loops_off
nullb=()
if [ -d /sys/kernel/config/nullb ]; then
  for i in 0 1 2; do
    dir=/sys/kernel/config/nullb/rl$i
    mkdir "$dir" && echo 1 > "$dir/memory_backed" && echo 4096 > "$dir/blocksize" && echo 64 > "$dir/size" && echo 16 > "$dir/cache_size" && echo 1 > "$dir/power" &&
      nullb+=("/dev/rl$i")
  done
fi
if [ "${#nullb[@]}" -eq 3 ] && [ -b "${nullb[2]}" ]; then
  MEMBERS=("${nullb[@]}")
  # These have a write-back cache, which the clean record must not overtake.
  check create-nullb create_array 5 --name nullb "${MEMBERS[@]}"
  equal block-nullb 4096 "$(blockdev --getss "$ARRAY_DEV")"
  check write-nullb write_places 3 0 8192 $((1 << 20))
  check resync-nullb wait_resync
  check stop-nullb stop_array
  check md-nullb with_md same /dev/md127 $((1 << 20)) $((3 + 16)) "$LENGTH"
  check parity-nullb parity_right
  check small loop_members 1 64M
  refused mixed-sectors 1 'differ in logical block size' raidctl create --level 5 --force "${nullb[@]}" "${MEMBERS[0]}"
  loops_off
else skip nullb 'no configurable null_blk here'; fi
for i in 0 1 2; do echo 0 > "/sys/kernel/config/nullb/rl$i/power" && rmdir "/sys/kernel/config/nullb/rl$i"; done 2> /dev/null

# --- odd sizes and places, against a plain file ---------------------------------------------------------------------
check members-odd loop_members 4 32M
check create-odd create_array 5 --name odd --chunk 16K "${MEMBERS[@]}"
stream 40 $((8 << 20)) > "$WORK/pool"
truncate -s $((16 << 20)) "$WORK/plain"
dd if=/dev/zero of="$ARRAY_DEV" bs=1M count=16 oflag=direct status=none
RANDOM=4711
for ((i = 0; i < 150; i++)); do
  sectors=$((RANDOM % (i % 10 ? 96 : 4096) + 1)) at=$(((RANDOM * 32768 + RANDOM) % (32768 - sectors))) from=$((RANDOM % 8192))
  for target in "$ARRAY_DEV" "$WORK/plain"; do
    dd if="$WORK/pool" of="$target" bs=$((sectors * 512)) count=1 iflag=skip_bytes skip=$((from * 512)) \
      oflag=seek_bytes"$([ -b "$target" ] && echo ,direct)" seek=$((at * 512)) conv=notrunc status=none || not_ok odd-write "$sectors at $at"
  done
done
check odd-same bash -c "dd if=$ARRAY_DEV bs=1M count=16 iflag=direct status=none | cmp - $WORK/plain"
check odd-same-pieces bash -c "dd if=$ARRAY_DEV bs=10752 count=16777216 iflag=direct,count_bytes status=none | cmp - $WORK/plain"

# --- large requests arrive whole ------------------------------------------------------------------------------------
for mib in 1 4; do
  before=$(field write_requests); check "write-$mib-mib" dd if=/dev/zero of="$ARRAY_DEV" bs="${mib}M" count=8 oflag=direct status=none
  equal "whole-writes-$mib-mib" 8 $(($(field write_requests) - before))
  before=$(field read_requests); check "read-$mib-mib" dd if="$ARRAY_DEV" of=/dev/null bs="${mib}M" count=8 iflag=direct status=none
  equal "whole-reads-$mib-mib" 8 $(($(field read_requests) - before))
done
check resync-odd wait_resync
check stop-odd stop_array
check parity-odd parity_right
loops_off

# --- discard and write zeroes ---------------------------------------------------------------------------------------
for shape in 0:3 5:3 6:4; do
  level=${shape%:*} name=zero-${shape%:*}
  check "members-$name" loop_members "${shape#*:}" 32M
  check "create-$name" create_array "$level" --name "$name" "${MEMBERS[@]}"
  check "put-$name" put "$ARRAY_DEV" 0 5 $((12 << 20))
  check "zero-out-$name" blkdiscard -z -o 1536 -l 3000320 "$ARRAY_DEV"
  check "zero-out-whole-$name" blkdiscard -z -o $((4 << 20)) -l $((4 << 20)) "$ARRAY_DEV"
  if [ "$level" = 0 ]; then
    check "discard-$name" blkdiscard -o $((9 << 20)) -l $((1 << 20)) "$ARRAY_DEV"
  else
    refused "discard-$name" 1 'not supported' blkdiscard -o $((9 << 20)) -l $((1 << 20)) "$ARRAY_DEV"
  fi
  stream 5 $((12 << 20)) > "$WORK/want"
  dd if=/dev/zero of="$WORK/want" bs=512 seek=3 count=5860 conv=notrunc status=none
  dd if=/dev/zero of="$WORK/want" bs=1M seek=4 count=4 conv=notrunc status=none
  # What was discarded reads as zeroes from these members.
  [ "$level" = 0 ] && dd if=/dev/zero of="$WORK/want" bs=1M seek=9 count=1 conv=notrunc status=none
  check "zeroed-$name" bash -c "dd if=$ARRAY_DEV bs=1M count=12 iflag=direct status=none | cmp - $WORK/want"
  check "resync-$name" wait_resync
  check "stop-$name" stop_array
  check "md-$name" with_md bash -c "dd if=/dev/md127 bs=1M count=12 iflag=direct status=none | cmp - $WORK/want"
  [ "$level" = 0 ] || check "parity-$name" parity_right
  loops_off
done

# --- past 2 TiB and 16 TiB ------------------------------------------------------------------------------------------
LENGTH=$((2 << 20)) T=$((1 << 40))
for shape in 0:2 5:3 6:4; do
  level=${shape%:*} name=huge-${shape%:*}
  check "members-$name" loop_members "${shape#*:}" 9T || continue
  clean=(); [ "$level" = 0 ] || clean=(--assume-clean)
  check "create-$name" create_array "$level" --name "$name" "${clean[@]}" "${MEMBERS[@]}" || continue
  size=$(blockdev --getsize64 "$ARRAY_DEV")
  [ "$size" -gt $((17 * T)) ] && ok "size-$name" || not_ok "size-$name" "$size"
  # Distinct bytes around every power that an address could be cut off at; all are read after all are written.
  places=(0 $((2 * T - LENGTH / 2)) $((4 * T - LENGTH / 2)) $((8 * T - LENGTH / 2)) $((16 * T - LENGTH / 2)) $((size - LENGTH)))
  check "write-$name" write_places 7 "${places[@]}"
  check "read-$name" read_places "$ARRAY_DEV" 7 "${places[@]}"
  check "zero-between-$name" zeroes "$ARRAY_DEV" $((2 * T + LENGTH)) $((1 << 20))
  check "stop-$name" stop_array
  check "md-$name" with_md read_places /dev/md127 7 "${places[@]}"
  if [ "$level" != 0 ]; then
    all=("${MEMBERS[@]}")
    for gone in 0 1; do
      MEMBERS=("${all[@]:0:gone}" "${all[@]:gone+1}")
      check "parity-$name-without-$gone" with_md read_places /dev/md127 7 "${places[@]}"
    done
  fi
  check "again-$name" raidctl assemble --name "$name"
  check "read-again-$name" read_places "$ARRAY_DEV" 7 "${places[@]}"
  check "stop-again-$name" stop_array
  loops_off
done
check daemon-ends stop_daemon
