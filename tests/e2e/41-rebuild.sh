#!/usr/bin/env bash
# Members are failed and replaced under a verified load: RAID 5 with one, RAID 6 with one and with two at once, a former member
# added again. Then md takes what raidctl rebuilt: roles, events and numbers as it would have them itself, no stripe wrong,
# the same bytes with each tolerated set of members missing.
# bed: uml
# time: 300
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/interop.sh"
. "$(dirname "$0")/faults.sh"

need rebuild fio mdadm || exit 0
events() { mdadm --examine "$1" | awk '/Events :/ { print $3 }'; }
role() { mdadm --examine "$1" | sed -n 's/.*Device Role : //p'; }
number() { raidctl examine --output json "$1" | json dev_number; }
same_sum() { [ "$(sum "$1")" = "$2" ]; }
whole() { [ "$(member_states)" = "$(printf 'i%.0s' $(seq "$1"))" ]; }

# one LEVEL MEMBERS LOST...: these slots are failed together and rebuilt on new devices.
one() {
  local level=$1 count=$2 name="r$1-$(($# - 2))" lost slot want i fresh; shift 2
  lost=("$@")
  blank "${LOOPS[@]}"
  MEMBERS=("${N[@]:0:count}")
  check "$name-create" create_array "$level" --name "$name" --force --assume-clean "${MEMBERS[@]}" || return
  check "$name-put" put "$ARRAY_DEV" $((96 << 20)) "$level" 8388608
  load "$name" 15 16
  sleep 1
  local victims=(); for slot in "${lost[@]}"; do victims+=("${MEMBERS[slot]}"); done
  check "$name-fail" raidctl fail "$name" "${victims[@]}"
  sleep 1
  check "$name-remove" raidctl remove "$name" failed
  fresh=("${N[@]:count:${#lost[@]}}")
  check "$name-add" raidctl add --force "$name" "${fresh[@]}"
  check "$name-wait" timeout 100 raidctl wait "$name"
  check "$name-whole" soon whole "$count" || { raidctl detail "$name"; return; }
  check "$name-load" finish_load
  check "$name-same" same "$ARRAY_DEV" $((96 << 20)) "$level" 8388608
  equal "$name-test" 0 "$(detail_test)"
  want=$(sum "$ARRAY_DEV")
  check "$name-stop" raidctl stop "$name"
  i=0
  for slot in $(raidctl examine --output json "${fresh[@]}" | grep -oE '"role": "[^"]*"' | grep -oE '[0-9]+'); do
    MEMBERS[slot]=${fresh[i]}
    equal "$name-md-role-$i" "Active device $slot" "$(role "${fresh[i]}")"
    equal "$name-number-$i" $((count + i)) "$(number "${fresh[i]}")"
    i=$((i + 1))
  done
  equal "$name-rebuilt" "${#lost[@]}" $i
  equal "$name-md-state" "$(printf 'A%.0s' $(seq "$count"))" "$(md_array_state "${MEMBERS[0]}")"
  equal "$name-events" 1 "$(for i in "${MEMBERS[@]}"; do events "$i"; done | sort -u | wc -l)"
  check "$name-parity" parity_right "${MEMBERS[@]}"
  if [ "$level" = 5 ]; then
    check "$name-md-without-each" every 1 same_sum $MD "$want"
  else
    check "$name-md-without-each-pair" every 2 same_sum $MD "$want"
  fi
  # raidctl reads the same without those that it rebuilt, and without others.
  check "$name-without-fresh" lacking "${lost[*]}" sum_is "$want"
  check "$name-without-others" lacking "$(((lost[0] + 1) % count))" sum_is "$want"
}
sum_is() { [ "$(sum "$2")" = "$1" ] || { echo "other bytes"; return 1; }; }

check loops loop_members 8 40M
check members nvme_loop "${MEMBERS[@]}"
N=("${MEMBERS[@]}")
check daemon start_daemon
one 5 4 1
one 6 6 0
one 6 6 2 5

# --- a former member comes back; a spare that waits steps in by itself ---------------------------------------------------
blank "${LOOPS[@]}"
MEMBERS=("${N[@]:0:5}")
check back-create create_array 6 --name back --force --assume-clean "${MEMBERS[@]}"
check back-put put "$ARRAY_DEV" 0 7 $((32 << 20))
check back-fail raidctl fail back "${N[3]}"
check back-put-on put "$ARRAY_DEV" $((64 << 20)) 8 $((32 << 20))
check back-again raidctl re-add back "${N[3]}"
check back-wait timeout 60 raidctl wait back
check back-whole soon whole 5
check spare-add raidctl add --force back "${N[5]}"
load spare 12 16
sleep 1
check spare-fail raidctl fail back "${N[0]}"
check spare-steps-in timeout 60 raidctl wait back
equal spare-states iiiiif "$(member_states)"
check spare-remove raidctl remove back failed
check spare-load finish_load
check back-same same "$ARRAY_DEV" $((64 << 20)) 8 $((32 << 20))
want=$(sum "$ARRAY_DEV")
check back-stop raidctl stop back
MEMBERS=("${N[5]}" "${N[@]:1:4}")
check back-parity parity_right "${MEMBERS[@]}"
check back-md-without-each-pair every 2 same_sum $MD "$want"
# The one that was removed is known for what it is.
refused back-removed 0 "${N[0]}: left out.*re-add" raidctl assemble "${N[@]:0:6}"
equal back-states iiiii "$(member_states back)"
check back-stop-again raidctl stop back
