#!/usr/bin/env bash
# Power cuts around the loss of a member: it fails under load, and images are made of what a cut leaves before its loss is
# known, while it is recorded, and long after. A member that has missed a write which was flushed is never taken as fresh,
# neither by raidctl nor by mdadm, and what was flushed is there: all of it, except in the write hole where the array had
# to be forced (dirty and a member short).
# RAIDD_CUTS and so on as in 60-power-cut.sh.
# Run by hand: docs/measurements/faults.md says what is open about it.
# bed: uml
# time: 120
# mem: 5G
# append: brd.rd_size=65536
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"
. "$(dirname "$0")/interop.sh"
. "$(dirname "$0")/powercut.sh"

need cut powercut mdadm || exit 0
test -b /dev/nbd0 || { skip cut "no network block devices here"; exit 0; }
CUTS=4 FLUSHES=2
CUT_FROM='fail'
LOST=1
FS= TEAR=512 JOB_MIB=24

# missed: whether a write that was begun after the loss had been flushed before the cut.
missed() { awk '$1 == "fail" { on = 1 } on && $1 == "begin" { begun[$2 " " $3] = 1 } on && $1 == "safe" && begun[$2 " " $3] { found = 1 } END { exit !found }' "$PROMISES"; }

# held_but HOLE DEVICE: as held; with HOLE, except for what the write hole may take.
held_but() {
  local options=()
  [ -z "$1" ] || options=(--risk "$RISK" --missing "$LEVEL:${#SET_A[@]}:$CHUNK:$BEGIN:$LOST")
  powercut check "$2" --promises "$PROMISES" --mib "$JOB_MIB" "${options[@]}"
}

# judge DEGRADED: whether so many missing members are right.
judge() {
  if missed; then [ "$1" = 1 ] || { echo "a stale member was taken: degraded $1"; return 1; }; fi
  [ "$1" -le 1 ] || { echo "degraded $1"; return 1; }
}

loss_by_raidctl() {
  local hole= degraded before
  # Where all members say the same, nothing has to be forced.
  assemble "${SET_A[@]}" || { hole=yes; assemble --force "${SET_A[@]}"; } || return 1
  degraded=$(field degraded)
  judge "$degraded" || return 1
  [ -z "$hole" ] || [ "$degraded" = 1 ] || { echo "had to be forced, and is whole"; return 1; }
  FORCED=$((FORCED + ${#hole} / 3)) DEGRADED=$((DEGRADED + degraded))
  held_but "$hole" "$ARRAY_DEV" && wait_resync "$ARRAY_DEV" 60 && held_but "$hole" "$ARRAY_DEV" || return 1
  before=$(sum "$ARRAY_DEV")
  stop_array && md_assemble "${SET_A[@]}" || return 1
  [ "$(cat /sys/block/md127/md/degraded)" = "$degraded" ] || { echo "md: degraded $(cat /sys/block/md127/md/degraded) after raidd's $degraded"; return 1; }
  [ "$(sum /dev/md127)" = "$before" ] || { echo "other bytes under md"; return 1; }
  if [ "$degraded" = 0 ]; then [ "$(md_mismatches)" = 0 ] || { echo "mismatches"; return 1; }; fi
  md_stop
}

loss_by_md() {
  local hole=
  md_assemble "${SET_B[@]}" || { hole=yes; md_stop; md_assemble --force "${SET_B[@]}"; } || return 1
  judge "$(cat /sys/block/md127/md/degraded)" && held_but "$hole" /dev/md127 && md_stop
}

record_loss() { # NAME LEVEL MEMBERS MIB
  local name=$1
  LEVEL=$2
  check "$name-members" recorded "$3" "$4" || return 1
  check "$name-create" create_array "$LEVEL" --name "$name" --chunk 64K "${MEMBERS[@]}" || return 1
  check "$name-resync" wait_resync
  CHUNK=128
  BEGIN=$(($(raidctl examine --output json "${MEMBERS[0]}" | json data_offset_bytes) / 512))
  powercut write "$ARRAY_DEV" --socket "$SAY" --seconds "$CUT_SECONDS" --seed "$SEED" --mib "$JOB_MIB" --unit "$TEAR" > "$WORK/load.out" 2>&1 &
  LOAD=$!
  sleep 1
  equal "$name-whole" "$(printf 'i%.0s' "${MEMBERS[@]}")" "$(member_states)"
  check "$name-fail" tell fail $LOST
  wait "$LOAD" && ok "$name-load" || not_ok "$name-load" "$(tail -n 1 "$WORK/load.out")"
  equal "$name-degraded" 1 "$(field degraded)"
  check "$name-stop" stop_array
  check "$name-end" recorded_end
}

check daemon start_daemon
for shape in "5 4 32" "6 5 32"; do
  # shellcheck disable=SC2086
  set -- $shape
  FORCED=0 DEGRADED=0
  record_loss "loss$1" $shape || continue
  sets "$2"
  cut_all "loss$1" loss_by_raidctl loss_by_md
  say "loss$1: $DEGRADED degraded, $FORCED forced"
  [ $DEGRADED -gt 0 ] && ok "loss$1-was-seen" || not_ok "loss$1-was-seen" "no image lacked the member"
done
check daemon-ends stop_daemon
