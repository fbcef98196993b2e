# Helpers of the scripts that hand arrays to md and back (20 and up): sourced after lib.sh. They need the program `pattern`
# (crate raid-tests), mdadm and small members that can be zeroed, and use MEMBERS in slot order throughout.
# shellcheck shell=bash

MD=/dev/md127

# blank LOOP...: empties loop devices over sparse files: parity over zeroes is right, so arrays may be assumed clean.
blank() { local dev; for dev in "$@"; do blkdiscard -f "$dev" 2> /dev/null || { say "$dev not emptied"; return 1; }; done; }

# without SLOT...: prints MEMBERS except those in these slots.
without() {
  local i
  for i in "${!MEMBERS[@]}"; do [[ " $* " == *" $i "* ]] || printf '%s\n' "${MEMBERS[i]}"; done
}

# heads: sums of what md would change on members that it should leave alone.
heads() { local dev; for dev in "${MEMBERS[@]}"; do dd if="$dev" bs=1M count=1 iflag=direct status=none | cksum; done; }

# md_create LEVEL LAYOUT CHUNK_KIB [mdadm options] MEMBER...: blanks MEMBERS and makes a clean array of md, as $MD.
md_create() {
  local level=$1 layout=$2 chunk=$3 bitmap=(--bitmap=none); shift 3
  [ "$level" != 0 ] || bitmap=()
  blank "${MEMBERS[@]}" && mdadm --create $MD --run --assume-clean --metadata=1.2 "${bitmap[@]}" --level="$level" --layout="$layout" --chunk="$chunk" "$@" \
    > "$WORK/md.out" 2>&1 || { say "mdadm: $(tail -n 2 "$WORK/md.out" | tr '\n' ' ')"; return 1; }
}

# md_check COMMAND...: md assembles all MEMBERS, the command succeeds, and md finds no wrong parity.
md_check() {
  local level count
  md_assemble "${MEMBERS[@]}" || return 1
  "$@" || { md_stop; return 1; }
  level=$(cat /sys/block/md127/md/level)
  if [ "$level" != raid0 ]; then
    [ "$(cat /sys/block/md127/md/degraded)" = 0 ] || { say "md calls the array degraded"; md_stop; return 1; }
    count=$(md_mismatches) || { say "no check by md"; md_stop; return 1; }
    [ "$count" = 0 ] || { say "mismatch_cnt $count"; md_stop; return 1; }
  fi
  md_stop
}

# md_lacking SLOTS COMMAND...: md assembles MEMBERS without those in SLOTS ("0 3") read-only, and the command succeeds.
md_lacking() {
  local slots=$1; shift
  # shellcheck disable=SC2046,SC2086
  md_assemble --readonly $(without $slots) || return 1
  "$@"; local code=$?
  md_stop || return 1
  [ $code -eq 0 ] || say "without slots $slots"
  return $code
}

# every 1|2 COMMAND...: md_lacking for every member or for every pair of them; leaves members untouched.
every() {
  local losses=$1 i j before; shift
  before=$(heads)
  for i in "${!MEMBERS[@]}"; do
    if [ "$losses" -eq 1 ]; then md_lacking "$i" "$@" || return 1; continue; fi
    for j in "${!MEMBERS[@]}"; do [ "$j" -le "$i" ] || md_lacking "$i $j" "$@" || return 1; done
  done
  [ "$(heads)" = "$before" ] || { say "reading changed a member's head"; return 1; }
}

# lacking SLOTS COMMAND...: the same with raidctl; the command gets the array's node as its last argument.
lacking() {
  local slots=$1; shift
  # shellcheck disable=SC2046,SC2086
  assemble --readonly $(without $slots) || return 1
  "$@" "$ARRAY_DEV"; local code=$?
  stop_array || return 1
  [ $code -eq 0 ] || say "without slots $slots"
  return $code
}

# assemble MEMBER...: raidctl assembles; sets ARRAY and ARRAY_DEV.
assemble() {
  local out
  out=$(raidctl assemble --output json "$@" 2> "$WORK/assemble.err") || {
    say "assemble: $out $(tail -n 3 "$WORK/assemble.err")"; return 1
  }
  ARRAY=$(json uuid <<< "$out") ARRAY_DEV=$(json device <<< "$out")
  [ -b "$ARRAY_DEV" ] || { say "no block device '$ARRAY_DEV' after assemble: $out"; return 1; }
}
