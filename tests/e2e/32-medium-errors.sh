#!/usr/bin/env bash
# Sectors that cannot be read: their bytes come from the other members and are written back, which heals them; the
# array stays whole. Where writing does not help, the member fails and the bytes are right all the same.
# bed: uml
# time: 180
# mem: 5G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need medium dmsetup mdadm || exit 0
MIB=64
# dust N: reads of chosen blocks (512 bytes) of node N fail until they are written.
dust() { dm_table "$1" "0 ${SECTORS[$1]} dust ${UNDER[$1]} 0 512" && dmsetup message "rf$1" 0 quiet > /dev/null && dmsetup message "rf$1" 0 enable; }
bad() { local n=$1 b; shift; for b in "$@"; do dmsetup message "rf$n" 0 addbadblock "$b" || return 1; done; }
bads() { dmsetup message "rf$1" 0 countbadblocks | grep -oE '[0-9]+ badblock' | cut -d ' ' -f 1; }
healed() { [ "$(bads "$1")" = 0 ]; }
# data_sector N: where the data area of node N begins.
data_sector() { echo $(($(raidctl examine --output json "${MEMBERS[$1]}" | json data_offset_bytes) / 512)); }
still_whole() { equal "$1" "$2" "$(member_states)"; equal "$1-test" 0 "$(detail_test)"; }
BYTES=$((24 << 20))

check members members 5
NODES=("${MEMBERS[@]}")
check daemon start_daemon

for shape in 5:4 6:5; do
  level=${shape%:*} count=${shape#*:}
  all=$(printf 'i%.0s' $(seq "$count"))
  check "wrap-$level" dm_wrap "$MIB" "${NODES[@]:0:count}"
  check "create-$level" create_array "$level" --name "m$level" --force "${MEMBERS[@]}"
  check "put-$level" put "$ARRAY_DEV" 0 "$level" "$BYTES"
  check "resync-$level" wait_resync
  check "sound-$level" same "$ARRAY_DEV" 0 "$level" "$BYTES"
  equal "sound-errors-$level" 0 "$(field member_errors)"
  at=$(data_sector 1)

  # One block in each of several stripes, data or parity, alone and in rows.
  for ((n = 0; n < count; n++)); do check "dust-$level-$n" dust "$n"; done
  check "bad-$level" bad 1 $((at + 3)) $((at + 130)) $((at + 131)) $((at + 132)) $((at + 300)) $((at + 450))
  refused "really-bad-$level" 1 'Input/output error' dd if=/dev/mapper/rf1 of=/dev/null bs=512 skip=$((at + 3)) count=1 iflag=direct
  check "read-$level" same "$ARRAY_DEV" 0 "$level" "$BYTES"
  [ "$(field member_errors)" -gt 0 ] && ok "seen-$level" || not_ok "seen-$level" "no member error was counted"
  still_whole "whole-$level" "$all"
  # What a healthy read touched is healed; parity is not read.
  left=$(bads 1)
  [ "$left" -lt 6 ] && ok "some-healed-$level" || not_ok "some-healed-$level" "still $left of 6 blocks bad"
  # Each block by itself reads right straight from the member now, or is still known bad: stop, and let md see.
  check "overwrite-$level" put "$ARRAY_DEV" 0 "1$level" "$BYTES"
  check "read-new-$level" same "$ARRAY_DEV" 0 "1$level" "$BYTES"
  check "all-healed-$level" healed 1
  still_whole "whole-after-write-$level" "$all"

  # Partial writes need old bytes that cannot be read.
  check "bad-for-updates-$level" bad 2 $((at + 8)) $((at + 136)) $((at + 264)) $((at + 392)) $((at + 520))
  for ((i = 0; i < 12; i++)); do
    at_byte=$((i * 65536 + 4096))
    check "update-$level-$i" put "$ARRAY_DEV" "$at_byte" "$((100 + i))" 4096 > /dev/null
    check "update-same-$level-$i" same "$ARRAY_DEV" "$at_byte" "$((100 + i))" 4096
  done
  still_whole "whole-after-updates-$level" "$all"

  # Two members, different stripes (5), the same rows (6).
  if [ "$level" = 5 ]; then
    check "bad-two-$level" bad 0 $((at + 2048)) $((at + 2049)); check "bad-two-b-$level" bad 3 $((at + 3072)) $((at + 3200))
  else
    check "bad-two-$level" bad 0 $((at + 2048)) $((at + 2176)) $((at + 2304)); check "bad-two-b-$level" bad 3 $((at + 2048)) $((at + 2176)) $((at + 2304))
  fi
  check "read-two-$level" same "$ARRAY_DEV" $((2 << 20)) 0 0
  dd if="$ARRAY_DEV" bs=1M iflag=direct status=none of="$WORK/first" && ok "read-all-$level" || not_ok "read-all-$level"
  dd if="$ARRAY_DEV" bs=64K iflag=direct status=none | cmp - "$WORK/first" && ok "read-all-again-$level" || not_ok "read-all-again-$level"
  check "tail-right-$level" bash -c "cmp -i 1048576 -n $((BYTES - 1048576)) $WORK/first <(seq $(("1$level" + 1))00000000000 inf 2> /dev/null | head -c $BYTES)"
  still_whole "whole-after-two-$level" "$all"
  check "stop-$level" stop_array
  for ((n = 0; n < count; n++)); do dmsetup message "rf$n" 0 disable; dm_heal "$n"; done
  check "md-same-$level" with_md cmp /dev/md127 "$WORK/first"
  check "parity-$level" parity_right

  # A place that cannot be written either, in the middle of a member's data.
  check "assemble-$level" raidctl assemble --name "m$level"
  check "region-$level" dm_error_region 2 $((at + 20480)) 8
  refused "region-is-bad-$level" 1 'Input/output error' dd if=/dev/mapper/rf2 of=/dev/null bs=512 skip=$((at + 20480)) count=1 iflag=direct
  dd if="$ARRAY_DEV" bs=1M iflag=direct status=none | cmp - "$WORK/first" && ok "region-read-$level" || not_ok "region-read-$level"
  check "region-written-$level" put "$ARRAY_DEV" $((20 << 20)) 77 $((20 << 20))
  check "region-fails-member-$level" states "${all:0:2}f${all:3}"
  equal "region-test-$level" 1 "$(detail_test)"
  check "region-same-$level" same "$ARRAY_DEV" $((20 << 20)) 77 $((20 << 20))
  check "region-stop-$level" stop_array
  dm_heal 2
  check "region-md-$level" with_md same /dev/md127 $((20 << 20)) 77 $((20 << 20))

  # Degraded by one: RAID 6 can still lose a sector, RAID 5 cannot, and says so for these bytes alone.
  raidctl assemble --name "m$level" > /dev/null 2>&1
  equal "degraded-again-$level" 1 "$(field degraded)"
  check "degraded-sound-$level" same "$ARRAY_DEV" $((20 << 20)) 77 $((20 << 20))
  dust 0 && bad 0 $((at + 20480 + 128)) $((at + 20480 + 256)) $((at + 20480 + 384)) $((at + 20480 + 512)) $((at + 20480 + 640))
  if [ "$level" = 6 ]; then
    check "degraded-read-$level" same "$ARRAY_DEV" $((20 << 20)) 77 $((20 << 20))
  else
    refused "degraded-read-$level" 1 'Input/output error' same "$ARRAY_DEV" $((20 << 20)) 77 $((20 << 20))
    check "degraded-others-$level" same "$ARRAY_DEV" $((20 << 20)) 77 65536
  fi
  equal "degraded-still-$level" 1 "$(field degraded)"
  equal "degraded-test-$level" 1 "$(detail_test)"
  check "degraded-stop-$level" stop_array
  dmsetup message rf0 0 disable
  dm_remove
done
check daemon-ends stop_daemon
