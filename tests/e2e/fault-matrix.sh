#!/usr/bin/env bash
# The fault matrix: every member of a RAID 5 and every pair of a RAID 6 fails by command, by I/O errors, by medium errors
# or by being pulled, while the array is idle, written, resynced, rebuilt or scrubbed; then the members are rebuilt. fio
# sees no error and no wrong byte, md counts no mismatch, and reads the same bytes without any tolerated set of members.
#
# Not numbered, so that it is run by hand only, until members can be rebuilt: every case ends at the step "rebuilt" so far.
#
#   RAIDD_MATRIX='6-1.3-pull-*' cargo xtask e2e tests/e2e/fault-matrix.sh
#
# RAIDD_MATRIX  cases to run, a pattern on LEVEL-SLOTS-HOW-PHASE ("*" is all: 280 cases); default: a fixed sample
# bed: uml
# time: 120
# mem: 6G
# append: brd.rd_size=49152
# append: scsi_debug.add_host=2
# append: scsi_debug.per_host_store=1
# append: scsi_debug.dev_size_mb=48
# append: scsi_debug.delay=0
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"
. "$(dirname "$0")/interop.sh"

need matrix fio dmsetup mdadm || exit 0
SAMPLE="5-0-command-rebuild 5-2-errors-writing 6-1.3-pull-resync 6-0.4-medium-idle 6-2.3-errors-scrub"
MIB=48
LOAD_MIB=10
mkdir -p "$WORK/m"

# all_cases: every name, one a line.
all_cases() {
  local how phase i j
  for phase in idle writing resync rebuild scrub; do
    for how in command errors medium pull; do
      for i in 0 1 2 3; do echo "5-$i-$how-$phase"; done
      for i in 0 1 2 3 4; do for ((j = i + 1; j < 5; j++)); do echo "6-$i.$j-$how-$phase"; done; done
    done
  done
}

# chosen: the cases to run.
chosen() {
  local name
  [ -n "${RAIDD_MATRIX:-}" ] || { tr ' ' '\n' <<< "$SAMPLE"; return; }
  # shellcheck disable=SC2254
  all_cases | while read -r name; do case $name in $RAIDD_MATRIX) echo "$name" ;; esac; done
}

# --- the members: RAM disks below device-mapper (0-5) and below NVMe (8-13), and two SCSI disks ------------------------
scsi_disks() { local d; for d in /sys/class/scsi_disk/*; do [ -e "$d" ] && echo "/dev/$(basename "$d"/device/block/*)"; done | head -n 2; }
# medium on|off: whether reads and writes of some sectors in the first half of the SCSI disks fail.
medium() {
  local sys=/sys/bus/pseudo/drivers/scsi_debug
  if [ "$1" = on ]; then echo 16384 > /sys/module/scsi_debug/parameters/medium_error_start && echo 2 > "$sys/opts"; else echo 0 > "$sys/opts"; fi
}
nvme_node() { # INDEX: the node of what is over RAM disk 8 + INDEX.
  local n subsystem
  for n in /sys/class/nvme/nvme*; do
    subsystem=$(cat "$n/subsysnqn" 2> /dev/null) || continue
    [ "$subsystem" = "raidd$1" ] && { echo "/dev/$(basename "$n")n1"; return; }
  done
  return 1
}
pull() { local n; n=$(basename "$(nvme_node "$1")" | sed 's/n[0-9]*$//') && echo 1 > "/sys/class/nvme/$n/delete_controller"; }

# choose HOW COUNT SLOT...: MEMBERS for a case, and SPARE, a further device.
choose() {
  local how=$1 count=$2 i disks; shift 2
  MEMBERS=()
  for ((i = 0; i <= count; i++)); do
    if [ "$how" = pull ]; then MEMBERS+=("$(nvme_node "$i")") || return 1; else MEMBERS+=("/dev/mapper/rf$i"); fi
  done
  SPARE=${MEMBERS[count]}
  MEMBERS=("${MEMBERS[@]:0:count}")
  if [ "$how" = medium ]; then
    mapfile -t disks < <(scsi_disks)
    [ "${#disks[@]}" -eq 2 ] || { echo "no SCSI disks"; return 1; }
    for i in "$@"; do MEMBERS[i]=${disks[0]}; disks=("${disks[@]:1}"); done
  fi
  for i in "${MEMBERS[@]}" "$SPARE"; do [ -b "$i" ] || { echo "no node $i"; return 1; }; done
}

# strike HOW SLOT: the member in this slot fails.
strike() {
  case $1 in
    command) raidctl fail "$ARRAY_DEV" "${MEMBERS[$2]}" ;;
    errors) dm_error "$2" ;;
    pull) pull "$2" ;;
    # Reads that fail are served from the others; writes back fail, too.
    medium) medium on ;;
  esac
}

# heal HOW SLOT: the device is good again. (The array lets go of it before: a node that is held open does not come back.)
heal() {
  raidctl remove "$ARRAY_DEV" failed > /dev/null 2>&1; raidctl remove "$ARRAY_DEV" detached > /dev/null 2>&1
  case $1 in
    errors) dm_heal "$2" ;;
    pull) MEMBERS[$2]=; nvme_connect "raidd$2" && unset 'MEMBERS[-1]' && MEMBERS[$2]=$(nvme_node "$2") ;;
    medium) medium off ;;
  esac
}

slow() { raidctl set "$ARRAY_DEV" resync.floor=1M resync.ceiling=2M; }
fast() { raidctl set "$ARRAY_DEV" resync.floor=1G resync.ceiling=none; }
whole() { states "$(printf 'i%.0s' $(seq "${#MEMBERS[@]}"))"; }
is_sum() { local found; found=$(sum /dev/md127); [ "$found" = "$1" ] || { echo "sum $found instead of $1"; return 1; }; }
# out SLOT: whether this member is not in sync any more.
out() { [ "$(member_states | cut -c $(($1 + 1)))" != i ]; }
# give SLOT: the device of this slot is given back as a new one.
give() {
  out "$1" || return 0
  raidctl zero --force "${MEMBERS[$1]}" > /dev/null 2>&1
  raidctl add --force "$ARRAY_DEV" "${MEMBERS[$1]}"
}

# steps LEVEL HOW PHASE SLOT...: one case; the first step that fails ends it.
steps() {
  local level=$1 how=$2 phase=$3 count tail before slot; shift 3
  count=$((level == 5 ? 4 : 5))
  echo "members"; choose "$how" "$count" "$@" || return 1
  for slot in "${MEMBERS[@]}" "$SPARE"; do raidctl zero --force "$slot" > /dev/null 2>&1; done
  echo "create"
  create_array "$level" --name matrix --force "${MEMBERS[@]}" || return 1
  [ "$phase" = resync ] || { fast && wait_resync; } || return 1
  tail=$((($(blockdev --getsize64 "$ARRAY_DEV") >> 20) - 12))
  # Without a fault first.
  echo "sound"; load sound 1 "$LOAD_MIB"; finish_load && put "$ARRAY_DEV" $((tail << 20)) 1 5000192 && whole || return 1
  [ "$phase" != resync ] || says resyncing || return 1
  local struck=("$@")
  case $phase in
    idle) sleep 0.5 ;;
    scrub) echo "scrub"; slow && raidctl scrub start "$ARRAY_DEV" || return 1 ;;
    rebuild)
      # The first is lost and being rebuilt on the spare when the others fail; with one redundancy it is the spare that fails.
      echo "rebuild"
      strike command "$1" 2> /dev/null || raidctl fail "$ARRAY_DEV" "${MEMBERS[$1]}" || return 1
      soon out "$1" && slow && raidctl add --force "$ARRAY_DEV" "$SPARE" && soon filling || return 1
      if [ "$level" = 5 ]; then struck=(); else struck=("${@:2}"); fi ;;
  esac
  [ "$phase" = idle ] || { load struck 6 "$LOAD_MIB"; sleep 1; }
  echo "strike"
  if [ "$phase" = rebuild ] && [ "$level" = 5 ]; then raidctl fail "$ARRAY_DEV" "$SPARE" || return 1; fi
  for slot in "${struck[@]}"; do strike "$how" "$slot" || return 1; sleep 0.3; done
  [ "$phase" != idle ] || load struck 3 "$LOAD_MIB"
  echo "load"; finish_load && alive || return 1
  # (Sectors that fail without the load coming upon them leave the member in.)
  echo "noticed"
  if [ "$how" != medium ]; then for slot in "${struck[@]}"; do soon out "$slot" || return 1; done; fi
  echo "degraded"
  same "$ARRAY_DEV" $((tail << 20)) 1 5000192 && put "$ARRAY_DEV" $(((tail + 6) << 20)) 2 5000192 && same "$ARRAY_DEV" $(((tail + 6) << 20)) 2 5000192 || return 1
  echo "heal"; for slot in "$@"; do heal "$how" "$slot" || return 1; done
  echo "give"
  load rebuilding 4 "$LOAD_MIB"
  fast || return 1
  for slot in "$@"; do give "$slot" || return 1; done
  echo "again"; finish_load || return 1
  # (It ends with 1 where nothing is to be waited for.)
  echo "rebuilt"; timeout 60 raidctl wait "$ARRAY_DEV"; whole || return 1
  echo "same"; same "$ARRAY_DEV" $((tail << 20)) 1 5000192 && same "$ARRAY_DEV" $(((tail + 6) << 20)) 2 5000192 || return 1
  before=$(sum "$ARRAY_DEV")
  mapfile -t MEMBERS < <(member_paths)
  echo "stop"; stop_array || return 1
  echo "md"; md_check is_sum "$before" && every $((level - 4)) is_sum "$before"
}

# filling: whether a rebuild runs.
filling() { raidctl status --output json "$ARRAY_DEV" | grep -qE 'rebuil'; }
# member_paths: of the array's members, in slot order.
member_paths() { raidctl detail --output json "$ARRAY_DEV" | tr -d ' \n' | grep -oE '"members":\[[^]]*\]' | grep -oE '"(path|device)":"[^"]*"' | cut -d '"' -f 4 | head -n "${#MEMBERS[@]}"; }

# one NAME: a case, and the bed as it was afterwards.
one() {
  local name=$1 level slots how phase i
  IFS=- read -r level slots how phase <<< "$name"
  if [ "$phase" = scrub ] && ! raidctl scrub --help > /dev/null 2>&1; then skip "$name" "no scrub in this build"; return; fi
  if steps "$level" "$how" "$phase" ${slots//./ } > "$WORK/steps.out" 2>&1; then ok "$name"; else
    not_ok "$name" "at the step '$(grep -xE '[a-z]+' "$WORK/steps.out" | tail -n 1)'"
    tail -n 12 "$WORK/steps.out" | sed 's/^/#   /'
    kill "${LOAD:-0}" 2> /dev/null; wait "$LOAD" 2> /dev/null
    md_stop
    raidctl stop matrix > /dev/null 2>&1 || raidctl stop --force matrix > /dev/null 2>&1
    alive || { say "raidd is dead"; start_daemon --config "$WORK/slow.yaml"; }
  fi
  medium off
  for i in "${!DM[@]}"; do dm_heal "$i" 2> /dev/null; done
  for i in 0 1 2 3 4 5; do nvme_node "$i" > /dev/null || nvme_connect "raidd$i"; done
}

check nvme nvme_loop /dev/ram{8..13}
check wrap dm_wrap "$MIB" /dev/ram{0..5}
check medium-off medium off
# Sweeps are slow from the start, so that they can be caught.
printf 'defaults:\n  resync:\n    floor: 1M\n    ceiling: 2M\n' > "$WORK/slow.yaml"
check daemon start_daemon --config "$WORK/slow.yaml"
count=0
while read -r -u 9 name; do
  one "$name"
  count=$((count + 1))
  [ $((count % 20)) -ne 0 ] || say "$count cases"
done 9< <(chosen)
say "$count cases"
check daemon-ends stop_daemon
dm_remove
