#!/usr/bin/env bash
# Members that fail under load, up to what the level can lose: nobody above sees it, the survivors know it, mdadm opens
# what is left and finds the same bytes. One loss too many: errors, but no dead daemon.
# bed: uml
# time: 240
# mem: 5G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need fails fio dmsetup mdadm || exit 0
MIB=64

# one_level LEVEL MEMBERS LOST...: LOST are the slots that fail, in this order.
one_level() {
  local level=$1 count=$2 disks i want survivors=() before; shift 2
  local lost=("$@") all data_mib tail_mib
  disks=(); for ((i = 0; i < count; i++)); do disks+=("${NODES[i]}"); done
  check "wrap-$level" dm_wrap "$MIB" "${disks[@]}" || return
  all=("${MEMBERS[@]}")
  check "create-$level" create_array "$level" --name "f$level" --force "${MEMBERS[@]}" || return
  data_mib=$(($(blockdev --getsize64 "$ARRAY_DEV") >> 20)) tail_mib=$((data_mib - 20))

  # Without a fault first.
  load sound 2 16; check "sound-load-$level" finish_load
  check "sound-put-$level" put "$ARRAY_DEV" $((tail_mib << 20)) "$level" 5000192
  equal "sound-states-$level" "$(printf 'i%.0s' $(seq "$count"))" "$(member_states)"
  equal "sound-test-$level" 0 "$(detail_test)"

  load failing 8 16
  sleep 2
  want=$(printf 'i%.0s' $(seq "$count"))
  local how=dm_error_writes n=0
  for slot in "${lost[@]}"; do
    n=$((n + 1))
    check "fault-$level-$n" $how "$slot"
    want=${want:0:slot}f${want:slot+1}
    check "noticed-$level-$n" states "$want"
    equal "degraded-$level-$n" $n "$(field degraded)"
    how=dm_error
    sleep 2
  done
  check "load-$level" finish_load
  check "alive-$level" alive
  check "says-degraded-$level" says degraded
  equal "test-$level" 1 "$(detail_test)"
  check "old-data-$level" same "$ARRAY_DEV" $((tail_mib << 20)) "$level" 5000192
  check "put-degraded-$level" put "$ARRAY_DEV" $(((tail_mib + 8) << 20)) "1$level" 7000064
  check "same-degraded-$level" same "$ARRAY_DEV" $(((tail_mib + 8) << 20)) "1$level" 7000064
  for ((i = 0; i < count; i++)); do [ "${want:i:1}" = i ] && survivors+=("${all[i]}"); done
  local letters=${want//i/A}; letters=${letters//f/.}
  for member in "${survivors[@]}"; do
    [ "$(array_state "$member")" = "$letters" ] || not_ok "survivor-knows-$level" "$member: $(array_state "$member")"
    [ "$(md_array_state "$member")" = "$letters" ] || not_ok "mdadm-sees-$level" "$member: $(md_array_state "$member")"
  done
  before=$(sum "$ARRAY_DEV")
  check "stop-$level" raidctl stop "f$level"

  # mdadm, given all members, healed: the failed ones are not taken back, and it reads the same bytes.
  for slot in "${lost[@]}"; do check "heal-$level-$slot" dm_heal "$slot"; done
  MEMBERS=("${survivors[@]}")
  equal "md-survivors-$level" "$before" "$(with_md sum /dev/md127)"
  # (mdadm leaves old members out by itself, where they are named too.)
  MEMBERS=("${all[@]}")
  equal "md-all-$level" "$before" "$(with_md sum /dev/md127)"

  # raidctl neither.
  raidctl assemble "${all[@]}" > "$WORK/assemble.out" 2>&1
  check "assemble-$level" grep -q 'left out' "$WORK/assemble.out"
  equal "still-degraded-$level" "${#lost[@]}" "$(field degraded "f$level")"
  equal "same-bytes-$level" "$before" "$(sum "$ARRAY_DEV")"

  # One too many.
  load last 5 16 --verify_fatal=0
  sleep 1
  local extra; for ((extra = 0; extra < count; extra++)); do [ "${want:extra:1}" = i ] && break; done
  dm_error "$extra"
  finish_load > /dev/null && not_ok "load-sees-errors-$level" "fio saw nothing" || ok "load-sees-errors-$level"
  check "alive-after-$level" alive
  check "says-failed-$level" says FAILED
  equal "test-failed-$level" 2 "$(detail_test)"
  refused "write-fails-$level" 1 'Input/output error' put "$ARRAY_DEV" 0 9 4096
  refused "read-fails-$level" 1 'rror' same "$ARRAY_DEV" 0 9 $((16 << 20))
  check "stop-failed-$level" timeout 30 raidctl stop "f$level"
  check "no-node-$level" test ! -b "$ARRAY_DEV"
  # What the survivors last said when the array could still be used stands; with the member back, it can be again.
  dm_heal "$extra"
  raidctl assemble --force "${survivors[@]}" > "$WORK/assemble.out" 2>&1
  check "revived-$level" same "$ARRAY_DEV" $(((tail_mib + 8) << 20)) "1$level" 7000064 || cat "$WORK/assemble.out"
  check "stop-revived-$level" raidctl stop "f$level"
  dm_remove
}

check members members 6
NODES=("${MEMBERS[@]}")
check daemon start_daemon
one_level 5 4 1
one_level 6 6 4 0

# RAID 0 has nothing to lose.
check wrap-0 dm_wrap "$MIB" "${NODES[@]:0:3}"
check create-0 create_array 0 --name f0 --force "${MEMBERS[@]}"
check put-0 put "$ARRAY_DEV" 0 3 4194304
check same-0 same "$ARRAY_DEV" 0 3 4194304
dm_error 1
refused read-0 1 'Input/output error' same "$ARRAY_DEV" 0 3 4194304
check others-read-0 same "$ARRAY_DEV" 0 3 65536
refused write-0 1 'Input/output error' put "$ARRAY_DEV" 0 4 4194304
check alive-0 alive
dm_heal 1
check again-0 put "$ARRAY_DEV" 0 5 4194304
check same-again-0 same "$ARRAY_DEV" 0 5 4194304
check stop-0 raidctl stop f0
check daemon-ends stop_daemon
dm_remove
