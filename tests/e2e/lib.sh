# Helpers for the end-to-end scripts: sourced by each of them (`. "$(dirname "$0")/lib.sh"`), inside a bed or on a
# real machine as root. A script prints lines "ok NAME", "not ok NAME # why" and "skip NAME # why"; the runner counts them.
#
# RAIDD_BIN_DIR  folder with raidd and raidctl (default: target/debug of this repository)
# RAIDD_BED      uml or qemu in a guest; empty on a real machine
# shellcheck shell=bash

set -u
E2E=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
REPO=$(cd "$E2E/../.." && pwd)
export RAIDD_BIN_DIR=${RAIDD_BIN_DIR:-$REPO/target/debug}
export PATH=$RAIDD_BIN_DIR:$PATH:/usr/sbin:/sbin
export DM_DISABLE_UDEV=1   # no udev in the beds: dmsetup makes its nodes itself
WORK=$(mktemp -d /tmp/raidd-e2e.XXXXXX)
export RAIDD_SOCKET=$WORK/raidd.sock
LOG=$WORK/raidd.log
FAILED=0
DAEMON=
MEMBERS=()
LOOPS=()
ARRAY= ARRAY_DEV=

say() { printf '# %s\n' "$*"; }

ok() { printf 'ok %s\n' "$1"; }

not_ok() { # NAME [WHY]
  FAILED=1
  printf 'not ok %s%s\n' "$1" "${2:+ # $2}"
}

skip() { printf 'skip %s # %s\n' "$1" "$2"; } # NAME WHY

# check NAME COMMAND...: ok if the command succeeds; its output is shown if it does not.
check() {
  local name=$1 out=$WORK/check.out; shift
  if "$@" > "$out" 2>&1; then ok "$name"; else
    local code=$?
    not_ok "$name" "'$*' ended with $code"
    sed 's/^/#   /' "$out" | tail -n 25
    return 1
  fi
}

# equal NAME EXPECTED ACTUAL
equal() { if [ "$2" = "$3" ]; then ok "$1"; else not_ok "$1" "expected '$2', got '$3'"; return 1; fi; }

# refused NAME EXIT PATTERN COMMAND...: ok if the command fails with this exit status and says something that matches
# the extended regular expression. First show, in the script, that the same step works without the fault.
refused() {
  local name=$1 want=$2 pattern=$3 out=$WORK/refused.out code; shift 3
  "$@" > "$out" 2>&1; code=$?
  if [ "$code" -ne "$want" ]; then
    not_ok "$name" "exit status $code, expected $want"
  elif ! grep -qE "$pattern" "$out"; then
    not_ok "$name" "no '$pattern' in its message"
  else ok "$name"; return 0; fi
  sed 's/^/#   /' "$out" | tail -n 25
  return 1
}

# need NAME PROGRAM...: false, and a skip line, where a program is missing.
need() {
  local name=$1 program; shift
  for program in "$@"; do
    command -v "$program" > /dev/null || { skip "$name" "no $program here"; return 1; }
  done
}

# --- members ---------------------------------------------------------------------------------------------------

# nvme_loop DEVICE...: turns block devices into NVMe namespaces and sets MEMBERS to them, in the same order.
nvme_loop() {
  local port=/sys/kernel/config/nvmet/ports/1 subsystem dev name controller i=${NVME_COUNT:-0}
  MEMBERS=()
  [ -d "$port" ] || { mkdir -p "$port" && echo loop > "$port/addr_trtype"; } || return 1
  for dev in "$@"; do
    name=raidd$i subsystem=/sys/kernel/config/nvmet/subsystems/raidd$i
    mkdir -p "$subsystem/namespaces/1" || return 1
    echo 1 > "$subsystem/attr_allow_any_host"
    printf %s "$dev" > "$subsystem/namespaces/1/device_path"
    echo 1 > "$subsystem/namespaces/1/enable" || return 1
    ln -s "$subsystem" "$port/subsystems/$name"
    nvme_connect "$name" || return 1
    i=$((i + 1))
  done
  NVME_COUNT=$i
}

# nvme_connect NAME: connects the target NAME and adds its namespace to MEMBERS once its node exists.
nvme_connect() {
  local controller node
  echo "transport=loop,nqn=$1" > /dev/nvme-fabrics || return 1
  for _ in {1..100}; do
    for controller in /sys/class/nvme/nvme*; do
      [ "$(cat "$controller/subsysnqn" 2> /dev/null)" = "$1" ] || continue
      for node in "$controller"/nvme*n1 "$controller"/nvme*c*n1; do
        [ -e "$node" ] || continue
        # With multipath the namespace below the controller is nvmeXcYn1, its node nvmeXn1.
        node=/dev/$(basename "$node" | sed -E 's/c[0-9]+n/n/')
        [ -b "$node" ] && { MEMBERS+=("$node"); return 0; }
      done
    done
    sleep 0.05
  done
  say "no node for the NVMe target $1"
  return 1
}

# loop_members N SIZE [losetup options]: sets MEMBERS to N loop devices over sparse files.
loop_members() {
  local n=$1 size=$2 dir=${RAIDD_MEMBER_DIR:-$WORK/members} i dev file; shift 2
  mkdir -p "$dir"
  MEMBERS=()
  for ((i = 0; i < n; i++)); do
    file=$dir/${#LOOPS[@]}.$$   # a new one for each loop device of this script
    truncate -s "$size" "$file" || return 1
    dev=$(losetup --show -f "$@" "$file") || return 1
    MEMBERS+=("$dev") LOOPS+=("$dev")
  done
}

# members N: sets MEMBERS to N NVMe namespaces: over RAM disks in UML, emulated drives in QEMU, loop devices elsewhere.
members() {
  local n=$1
  case ${RAIDD_BED:-} in
    uml)
      local disks=() i
      for ((i = 0; i < n; i++)); do disks+=("/dev/ram$i"); done
      nvme_loop "${disks[@]}" ;;
    qemu) for _ in {1..100}; do
        mapfile -t MEMBERS < <(ls -d /dev/nvme*n1 2> /dev/null | sort -V | head -n "$n")
        [ "${#MEMBERS[@]}" -eq "$n" ] && break
        sleep 0.1
      done ;;
    *) loop_members "$n" 512M ;;
  esac
  if [ "${#MEMBERS[@]}" -ne "$n" ]; then say "only ${#MEMBERS[@]} of $n members"; return 1; fi
}

# fill_zero DEVICE...: writes zeroes over whole devices, in parallel (RAM disks take their memory at the first write).
fill_zero() {
  local dev pids=() failed=0
  for dev in "$@"; do
    dd if=/dev/zero of="$dev" bs=4M oflag=direct conv=fsync status=none count=$(($(blockdev --getsize64 "$dev") >> 22)) & pids+=($!)
  done
  for dev in "${pids[@]}"; do wait "$dev" || failed=1; done
  return $failed
}

# --- the daemon and its arrays ---------------------------------------------------------------------------------

# start_daemon [ARGUMENT...]: starts raidd and waits for its socket.
start_daemon() {
  raidd --socket "$RAIDD_SOCKET" "$@" >> "$LOG" 2>&1 &
  DAEMON=$!
  for _ in {1..200}; do
    [ -S "$RAIDD_SOCKET" ] && raidctl list > /dev/null 2>&1 && return 0
    kill -0 "$DAEMON" 2> /dev/null || break
    sleep 0.05
  done
  say "raidd did not come up; its log:"; sed 's/^/#   /' "$LOG" | tail -n 25
  return 1
}

# stop_daemon: ends raidd with SIGTERM and returns its exit status.
stop_daemon() {
  [ -n "$DAEMON" ] || return 0
  kill -TERM "$DAEMON" 2> /dev/null
  for _ in {1..200}; do kill -0 "$DAEMON" 2> /dev/null || break; sleep 0.05; done
  if kill -0 "$DAEMON" 2> /dev/null; then say "raidd ignores SIGTERM"; kill -KILL "$DAEMON"; fi
  wait "$DAEMON"; local code=$?
  DAEMON=
  return $code
}

# crash_daemon [ARGUMENT...]: kills raidd and loses what it has left for a successor, as a power cut would; its device ends with
# errors. The next raidd serves then.
crash_daemon() {
  kill -KILL "$DAEMON"; wait "$DAEMON" 2> /dev/null
  rm -rf "$WORK/arrays"
  start_daemon "$@" && raidctl stop --abandon "$ARRAY_DEV"
}

# json KEY < JSON: the first value of KEY, a string without its quotes or another scalar.
json() { grep -oE "\"$1\" *: *(\"[^\"]*\"|[^][{},[:space:]]+)" | head -n 1 | sed -E "s/^\"$1\" *: *//; s/^\"(.*)\"$/\1/"; }

# create_array LEVEL [raidctl create arguments...] MEMBER...: creates, sets ARRAY (its uuid) and ARRAY_DEV.
create_array() {
  local level=$1 out; shift
  out=$(raidctl create --output json --yes --level "$level" "$@" 2> "$WORK/create.err") || {
    say "create failed: $(tail -n 3 "$WORK/create.err")"; sed 's/^/#   /' "$LOG" | tail -n 10; return 1
  }
  ARRAY=$(json uuid <<< "$out") ARRAY_DEV=$(json device <<< "$out")
  [ -b "$ARRAY_DEV" ] || { say "no block device '$ARRAY_DEV' after create: $out"; return 1; }
}

# wait_resync [NAME [SECONDS]]: waits until no resync runs.
wait_resync() {
  local name=${1:-$ARRAY_DEV} seconds=${2:-120} out
  for ((i = 0; i < seconds * 5; i++)); do
    out=$(raidctl detail --output json "$name" 2>&1) || { say "detail failed: $out"; return 1; }
    tr -d ' \n' <<< "$out" | grep -q '"resync":null' && return 0
    sleep 0.2
  done
  say "resync did not end in $seconds s: $(tr -d '\n' <<< "$out" | grep -oE '"resync" *: *\{[^}]*\}')"
  return 1
}

stop_array() { raidctl stop "${1:-$ARRAY_DEV}"; }

# --- MD, the other implementation ------------------------------------------------------------------------------

# md_assemble [mdadm options] MEMBER...: assembles as /dev/md127 and waits for its node.
md_assemble() {
  mdadm --assemble --run /dev/md127 "$@" > "$WORK/md.out" 2>&1 || { say "$(tail -n 3 "$WORK/md.out")"; return 1; }
  for _ in {1..50}; do [ -b /dev/md127 ] && return 0; sleep 0.1; done
  return 1
}

md_stop() { for _ in {1..20}; do mdadm --stop "${1:-/dev/md127}" > /dev/null 2>&1 && return 0; sleep 0.2; done; return 1; }

# with_md COMMAND...: runs the command while md has MEMBERS assembled read-only as /dev/md127.
with_md() {
  md_assemble --readonly "${MEMBERS[@]}" || return 1
  "$@"; local code=$?
  md_stop || return 1
  return $code
}

# md_mismatches [DEV]: lets md check a running array and prints its mismatch count (sectors).
md_mismatches() {
  local sys
  sys=/sys/block/$(basename "$(readlink -f "${1:-/dev/md127}")")/md
  # The check has the array for itself; md would hold it back to a few MB/s.
  echo 4000000 > "$sys/sync_speed_max" && echo 4000000 > "$sys/sync_speed_min"
  md_idle "$sys" && echo check > "$sys/sync_action" && md_idle "$sys" && cat "$sys/mismatch_cnt"
}

# md_idle SYS: waits until md does no sync. A check that was just asked for may show as idle for a moment, so its
# end is taken from two looks in a row.
md_idle() {
  local calm=0
  for _ in {1..3000}; do
    if [ "$(cat "$1/sync_action")" = idle ]; then calm=$((calm + 1)); else calm=0; fi
    [ $calm -ge 3 ] && return 0
    sleep 0.1
  done
  return 1
}

# --- data ------------------------------------------------------------------------------------------------------

# tree_sums DIR: sha256 of each file below DIR, in a stable order, with names relative to it.
tree_sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0r sha256sum); }

# --- end -------------------------------------------------------------------------------------------------------

cleanup() {
  local code=$? loop
  trap - EXIT
  cd /
  findmnt -rno TARGET 2> /dev/null | grep "^$WORK/" | sort -r | while read -r loop; do umount "$loop" 2> /dev/null; done
  if [ -n "$DAEMON" ] && kill -0 "$DAEMON" 2> /dev/null; then
    [ -n "$ARRAY_DEV" ] && raidctl stop "$ARRAY_DEV" > /dev/null 2>&1
    stop_daemon || true
  fi
  [ -b /dev/md127 ] && mdadm --stop /dev/md127 > /dev/null 2>&1
  for loop in "${LOOPS[@]}"; do losetup -d "$loop" 2> /dev/null; done
  # In a guest the log is gone afterwards: show it where something failed.
  if [ $FAILED -ne 0 ] && [ -s "$LOG" ]; then say "raidd's log ends with:"; tail -n 30 "$LOG" | sed 's/^/#   /'; fi
  rm -rf "$WORK"
  [ $code -eq 0 ] && code=$FAILED
  exit "$code"
}
trap cleanup EXIT
