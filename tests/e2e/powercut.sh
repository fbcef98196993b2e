# What the scripts that cut the power share: an array on recorded members, images of what a cut leaves on them, and
# the checks of an image by raidctl and by md. Sourced after lib.sh, faults.sh and interop.sh.
#
# RAIDD_CUTS         points at random in each recording (default: CUTS of the script)
# RAIDD_CUT_FLUSHES  flush boundaries in each recording, spread evenly (default: FLUSHES of the script; "all" is all)
# RAIDD_CUT_SEED     of the load, the points and the images
# RAIDD_CUT_SECONDS  of load
# RAIDD_CUT_KEEP     a folder that gets the recording and the point of the first image that fails
# shellcheck shell=bash

SEED=${RAIDD_CUT_SEED:-1}
CUT_SECONDS=${RAIDD_CUT_SECONDS:-4}
SAY=$WORK/recorder.sock
RECORDING=$WORK/recording
PROMISES=$WORK/promises
RISK=$WORK/risk
MNT=$WORK/mnt
RECORDER=
mkdir -p "$MNT"

tell() { powercut say --socket "$SAY" "$@"; }

# recorded N MIB: MEMBERS are N members of MIB MiB that are recorded from now on.
recorded() {
  local i
  MEMBERS=() CUT_MIB=$2
  for ((i = 0; i < $1; i++)); do MEMBERS+=("/dev/nbd$i"); done
  rm -f "$SAY" "$RECORDING"
  powercut record --log "$RECORDING" --socket "$SAY" --mib "$2" "${MEMBERS[@]}" > "$WORK/recorder.out" 2>&1 &
  RECORDER=$!
  for _ in {1..100}; do
    [ -S "$SAY" ] && [ "$(blockdev --getsize64 "${MEMBERS[-1]}")" = $(($2 << 20)) ] && return 0
    kill -0 "$RECORDER" 2> /dev/null || break
    sleep 0.05
  done
  cat "$WORK/recorder.out"
  return 1
}

# recorded_end: the members go away, the recording is whole.
recorded_end() { tell quit && wait "$RECORDER"; }

# make_fs FS DEVICE: mounted at MNT.
make_fs() {
  case $1 in
    ext4) mkfs.ext4 -qF -E lazy_itable_init=0,lazy_journal_init=0,nodiscard "$2" ;;
    # xfsprogs makes no file systems this small except for its own tests, which are known by these.
    xfs) TEST_DIR=x TEST_DEV=x QA_CHECK_FS=x mkfs.xfs -qfK "$2" ;;
  esac && mount "$2" "$MNT"
}

# held DEVICE [ro]: everything that was promised before the cut is there. With a file system on it: through its journal,
# except where the array is read-only; then the file system must have been left clean.
held() {
  local code options=()
  if [ -z "$FS" ]; then powercut check "$1" --promises "$PROMISES" --mib "$JOB_MIB"; return; fi
  if [ "${2:-}" = ro ]; then case $FS in ext4) options=(-o ro,noload) ;; xfs) options=(-o ro,norecovery) ;; esac; fi
  mount -t "$FS" "${options[@]}" "$1" "$MNT" || { dmesg | tail -n 4; return 1; }
  powercut check "$MNT" --promises "$PROMISES" --mib "$JOB_MIB"; code=$?
  umount "$MNT" || return 1
  return $code
}

fsck_clean() {
  case $FS in
    ext4) e2fsck -fn "$1" ;;
    xfs) xfs_repair -n "$1" ;;
  esac
}

# sets N: the images' members, two sets of RAM disks: raidctl gets one, md the other.
sets() {
  local i
  SET_A=() SET_B=()
  for ((i = 0; i < $1; i++)); do SET_A+=("/dev/ram$i") SET_B+=("/dev/ram$((i + $1))"); done
}

# lost_set N: slots that the N-th image is read without: in turn each one, or for RAID 6 each pair.
lost_set() {
  local count=${#SET_A[@]} i j all=()
  for ((i = 0; i < count; i++)); do
    if [ "$LEVEL" = 5 ]; then all+=("$i"); continue; fi
    for ((j = i + 1; j < count; j++)); do all+=("$i $j"); done
  done
  echo "${all[$1 % ${#all[@]}]}"
}

# by_raidctl N: the image is assembled without force, has what was promised before and after the resync, has right parity
# by md's count, and reads the same without members.
by_raidctl() {
  local found
  MEMBERS=("${SET_A[@]}")
  assemble "${MEMBERS[@]}" && held "$ARRAY_DEV" && wait_resync "$ARRAY_DEV" 60 && held "$ARRAY_DEV" && stop_array || return 1
  md_assemble "${MEMBERS[@]}" || return 1
  [ "$(cat /sys/block/md127/md/degraded)" = "${EXPECT_DEGRADED:-0}" ] || { echo "md: degraded $(cat /sys/block/md127/md/degraded)"; return 1; }
  found=$(md_mismatches)
  [ "$found" = 0 ] || { echo "mismatch_cnt $found after raidd's resync"; return 1; }
  [ -z "$FS" ] || fsck_clean /dev/md127 || return 1
  md_stop || return 1
  # shellcheck disable=SC2046
  lacking "$(lost_set "$1")" held_ro
}
held_ro() { held "$1" ro; }

# by_md: the same image under md.
by_md() {
  local found
  md_assemble "${SET_B[@]}" && held /dev/md127 || return 1
  found=$(md_mismatches)
  [ "$found" = 0 ] || { echo "mismatch_cnt $found after md's resync"; return 1; }
  held /dev/md127 && md_stop
}

# clear_up: whatever a failed image left behind.
clear_up() {
  umount "$MNT" 2> /dev/null
  md_stop
  raidctl stop --force "$ARRAY_DEV" > /dev/null 2>&1 || raidctl stop "$ARRAY_DEV" > /dev/null 2>&1
  alive || { say "raidd is dead"; start_daemon; }
}

# found_out NAME CHECK: the check is worth something: it finds the loss if members lie about their flushes.
found_out() {
  local point kind open bad=0 number=0
  coproc CUT {
    exec powercut cut "$RECORDING" --members "${#SET_A[@]}" --mib "$CUT_MIB" --promises "$PROMISES" --tear "$TEAR" \
      --flushes 0 --random 6 --seed 7 --forget "${SET_A[@]}" "${SET_B[@]}" 2> "$WORK/cut.err"
  }
  local in=${CUT[0]} out=${CUT[1]} pid=$CUT_PID   # unset by bash once it has ended
  while read -r -u "$in" point kind open; do
    number=$((number + 1))
    $2 "$number" > "$WORK/image.out" 2>&1 || { clear_up; bad=1; break; }
    echo next >&"$out" || break
  done
  eval "exec $out>&-" 2> /dev/null
  wait "$pid" 2> /dev/null
  [ $bad -eq 1 ] && ok "$1-lies-are-found" || not_ok "$1-lies-are-found" "members that forget what was flushed pass"
}

# cut_all NAME CHECK...: makes the images of the recording and runs each CHECK with the number of the image on it.
cut_all() {
  local name=$1 point kind open number=0 flushes=0 bad=0 broken one; shift
  local count=${#SET_A[@]} limit=()
  [ "${RAIDD_CUT_FLUSHES:-$FLUSHES}" = all ] || limit=(--flushes "${RAIDD_CUT_FLUSHES:-$FLUSHES}")
  local opens=0
  coproc CUT {
    exec powercut cut "$RECORDING" --members "$count" --mib "$CUT_MIB" --promises "$PROMISES" --seed "$SEED" --tear "$TEAR" \
      --risk "$RISK" --from "${CUT_FROM:-armed}" "${limit[@]}" --random "${RAIDD_CUTS:-$CUTS}" ${RAIDD_CUT_ONLY:+--only "$RAIDD_CUT_ONLY"} "${SET_A[@]}" "${SET_B[@]}" 2> "$WORK/cut.err"
  }
  local in=${CUT[0]} out=${CUT[1]} pid=$CUT_PID   # unset by bash once it has ended
  while read -r -u "$in" point kind open; do
    broken=
    for one in "$@"; do
      # No subshell: the checks set ARRAY_DEV.
      $one "$number" > "$WORK/image.out" 2>&1 || { broken=$one; break; }
    done
    if [ -n "$broken" ]; then
      bad=$((bad + 1))
      not_ok "$name-$point" "$kind, $open open writes: $broken"
      tail -n 12 "$WORK/image.out" | sed 's/^/#   /'
      clear_up
      if [ -n "${RAIDD_CUT_KEEP:-}" ] && [ ! -e "$RAIDD_CUT_KEEP/$name.$point" ]; then
        mkdir -p "$RAIDD_CUT_KEEP" && cp "$RECORDING" "$RAIDD_CUT_KEEP/$name.recording" && cp "$PROMISES" "$RAIDD_CUT_KEEP/$name.$point"
      fi
      [ $bad -lt 5 ] || { say "no more of $name"; break; }
    fi
    number=$((number + 1)) opens=$((opens + open))
    [ "$kind" != flush ] || flushes=$((flushes + 1))
    [ $((number % 50)) -ne 0 ] || say "$name: $number images, $bad bad"
    echo next >&"$out" || break
  done
  eval "exec $out>&-" 2> /dev/null
  wait "$pid" 2> /dev/null
  [ -s "$WORK/cut.err" ] && { not_ok "$name-images" "$(tail -n 1 "$WORK/cut.err")"; return 1; }
  say "$name: $number images ($flushes at flush boundaries), on average $((opens / (number > 0 ? number : 1))) open writes in each, last promises: $(tail -n 2 "$WORK/image.out" | head -c 200 | tr '\n' ' ')"
  [ $number -gt 0 ] || { not_ok "$name" "no image"; return 1; }
  [ $bad -gt 0 ] || ok "$name-$number-images"
}
