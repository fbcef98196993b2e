#!/usr/bin/env bash
# Arrays that lose members under md, then under raidctl, and go back and forth: both read the same data from what is left,
# neither takes a stale member for fresh, and after a rebuild by md all is well again.
# bed: uml
# time: 240
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/interop.sh"

need degraded pattern mdadm || exit 0
check daemon start_daemon

# is_degraded N: raidctl says so, in its state and by the status of `detail --test`.
is_degraded() {
  local code out
  out=$(raidctl detail --output json "$ARRAY_DEV") || return 1
  [ "$(json degraded <<< "$out")" = "$1" ] || { say "degraded: $(json degraded <<< "$out"), not $1"; return 1; }
  raidctl detail --test "$ARRAY_DEV" > /dev/null; code=$?
  [ $code -eq $(($1 > 0)) ] || { say "detail --test ended with $code"; return 1; }
}
md_degraded() { [ "$(cat /sys/block/md127/md/degraded)" = "$1" ] || { cat /proc/mdstat; return 1; }; }

# assembled OVER... -- DEGRADED MEMBER...: raidctl assembles; so many are missing; the pattern is right.
assembled() {
  local over=() want
  while [ "$1" != -- ]; do over+=(--over "$1"); shift; done
  want=$2; shift 2
  assemble "$@" && is_degraded "$want" && pattern verify "$ARRAY_DEV" "${over[@]}"
}
# written SEED OVER...: raidctl's array takes scattered writes and reads back right with them; then it stops.
written() {
  local over=() seed
  for seed in "${@:2}" "$1"; do over+=(--over "$seed"); done
  pattern scatter "$ARRAY_DEV" --seed "$1" && pattern verify "$ARRAY_DEV" "${over[@]}" && stop_array
}
# md_assembled DEGRADED OVER... -- MEMBER...: the same with md, which stays up.
md_assembled() {
  local want=$1 over=(); shift
  while [ "$1" != -- ]; do over+=(--over "$1"); shift; done
  shift
  md_assemble "$@" && md_degraded "$want" && pattern verify $MD "${over[@]}"
}
rebuilt() { # MEMBER...: md takes members as new ones and makes them whole
  echo 1000000 > /sys/block/md127/md/sync_speed_min
  mdadm --zero-superblock "$@" && mdadm $MD --add "$@" && sleep 0.5 && md_idle /sys/block/md127/md && md_degraded 0
}

# --- level 5: md loses slot 2 and writes on -----------------------------------------------------------------------
check loops loop_members 6 40M
SIX=("${MEMBERS[@]}")
MEMBERS=("${SIX[@]:0:5}")
M=("${MEMBERS[@]}")
check 5-create create_array 5 --name five "${M[@]}"
check 5-fill pattern write "$ARRAY_DEV"
check 5-sync wait_resync
check 5-stop stop_array
check 5-md-takes-it md_assembled 0 -- "${M[@]}"
check 5-md-fails-one mdadm $MD --fail "${M[2]}" --remove "${M[2]}"
check 5-md-writes pattern scatter $MD --seed 2
check 5-md-stops md_stop
check 5-assemble-all assembled 2 -- 1 "${M[@]}"
stop_array > /dev/null
refused 5-stale-instead 1 'missing|needed|of 5|stale|behind|faulty' raidctl assemble "${M[@]:1}"
refused 5-stale-alone 1 'missing|needed|of 5|stale|behind|faulty' raidctl assemble "${M[2]}"
check 5-assemble-four assembled 2 -- 1 $(without 2)
check 5-write written 3 2
check 5-md-reads md_assembled 1 2 3 -- "${M[@]}"
check 5-md-writes-more pattern scatter $MD --seed 4
check 5-md-rebuilds rebuilt "${M[2]}"
equal 5-md-mismatches 0 "$(md_mismatches)"
check 5-md-stops-again md_stop
check 5-whole assembled 2 3 4 -- 0 "${M[@]}"
check 5-write-whole written 5 2 3 4
check 5-md-agrees md_check pattern verify $MD --over 2 --over 3 --over 4 --over 5
check 5-every-loss every 1 pattern verify $MD --over 2 --over 3 --over 4 --over 5

# --- raidctl starts it without a member and writes; that member is stale from then on --------------------------------
check 5-start-without assembled 2 3 4 5 -- 1 $(without 1)
check 5-write-without written 6 2 3 4 5
check 5-md-leaves-stale-out md_assembled 1 2 3 4 5 6 -- "${M[@]}"
check 5-md-stops-3 md_stop
check 5-leaves-stale-out assembled 2 3 4 5 6 -- 1 "${M[@]}"
stop_array > /dev/null
md_alone() { md_assemble "$@" && { md_stop; return 1; }; ! grep -q 'active raid' /proc/mdstat; md_stop > /dev/null; return 0; }
check 5-md-refuses-stale md_alone "${M[1]}" "${M[2]}" "${M[3]}" "${M[4]}"
# A replacement that was never in the array, in the place of the stale one.
check 5-md-without-1 md_assembled 1 2 3 4 5 6 -- $(without 1)
check 5-md-replaces rebuilt "${SIX[5]}"
equal 5-md-mismatches-again 0 "$(md_mismatches)"
check 5-md-stops-4 md_stop
MEMBERS=("${M[0]}" "${SIX[5]}" "${M[2]}" "${M[3]}" "${M[4]}")
check 5-replaced assembled 2 3 4 5 6 -- 0 "${SIX[@]}"
check 5-write-replaced written 7 2 3 4 5 6
check 5-md-agrees-again md_check pattern verify $MD --over 2 --over 3 --over 4 --over 5 --over 6 --over 7

# --- level 6: one lost under md, another under raidctl ---------------------------------------------------------------
blank "${SIX[@]}"
MEMBERS=("${SIX[@]}")
M=("${MEMBERS[@]}")
check 6-create create_array 6 --name six --assume-clean "${M[@]}"
check 6-fill pattern write "$ARRAY_DEV"
check 6-stop stop_array
check 6-md-takes-it md_assembled 0 -- "${M[@]}"
check 6-md-fails-one mdadm $MD --fail "${M[4]}" --remove "${M[4]}"
check 6-md-writes pattern scatter $MD --seed 2
check 6-md-stops md_stop
check 6-assemble-all assembled 2 -- 1 "${M[@]}"
check 6-write written 3 2
check 6-two-missing assembled 2 3 -- 2 $(without 4 0)
check 6-write-two-missing written 4 2 3
refused 6-three-missing 1 'missing|needed|of 6|stale|behind|faulty' raidctl assemble $(without 4 1 2)
check 6-md-reads md_assembled 2 2 3 4 -- "${M[@]}"
check 6-md-rebuilds rebuilt "${M[0]}" "${M[4]}"
equal 6-md-mismatches 0 "$(md_mismatches)"
check 6-md-stops-again md_stop
check 6-whole assembled 2 3 4 -- 0 "${M[@]}"
check 6-write-whole written 5 2 3 4
check 6-md-agrees md_check pattern verify $MD --over 2 --over 3 --over 4 --over 5
check 6-some-losses md_lacking '1 3' pattern verify $MD --over 2 --over 3 --over 4 --over 5
