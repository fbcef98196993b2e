#!/usr/bin/env bash
# Arrays made by raidctl with every layout: md agrees about data and parity, also with members missing.
# bed: uml
# time: 480
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/interop.sh"

need layouts pattern mdadm blkdiscard || exit 0
check daemon start_daemon

# made LEVEL LAYOUT CHUNK_KIB MEMBERS
made() {
  local level=$1 layout=$2 chunk=$3 n=$4 i lost=()
  MEMBERS=("${ALL[@]:0:n}")
  [ "$level" != 5 ] || lost=("$((chunk % n))" 0)
  [ "$level" != 6 ] || lost=("$((chunk % n)) $(((chunk + 1) % n))" "0 $((n - 1))")
  blank "${MEMBERS[@]}" && create_array "$level" --layout "$layout" --chunk "${chunk}K" --assume-clean "${MEMBERS[@]}" || return 1
  pattern write "$ARRAY_DEV" && pattern scatter "$ARRAY_DEV" --seed 2 && pattern verify "$ARRAY_DEV" --over 2 || return 1
  stop_array || return 1
  mdadm --examine "${MEMBERS[0]}" | grep -iE "Layout : $layout|Chunk Size : ${chunk}K" | wc -l | grep -qx 2 ||
    { say "$(mdadm --examine "${MEMBERS[0]}")"; return 1; }
  md_check pattern verify $MD --over 2 || return 1
  for i in "${lost[@]}"; do
    md_lacking "$i" pattern verify $MD --over 2 && lacking "$i" pattern verify --over 2 || return 1
  done
}

check loops loop_members 8 18M
ALL=("${MEMBERS[@]}")
i=4
CHUNKS=(64 4 512 16 128 1024 8 32 256)
for layout in left-asymmetric right-asymmetric left-symmetric right-symmetric parity-first parity-last; do
  chunk=${CHUNKS[i % 9]} n=$((3 + i % 5)) i=$((i + 1))
  check "5-$layout-${chunk}K-$n" made 5 $layout "$chunk" $n
done
for layout in left-asymmetric right-asymmetric left-symmetric right-symmetric parity-first parity-last \
    ddf-zero-restart ddf-N-restart ddf-N-continue \
    left-asymmetric-6 right-asymmetric-6 left-symmetric-6 right-symmetric-6 parity-first-6; do
  chunk=${CHUNKS[i % 9]} n=$((4 + i % 5)) i=$((i + 1))
  check "6-$layout-${chunk}K-$n" made 6 $layout "$chunk" $n
done

few=("${ALL[@]:0:2}")
loop_members 2 40M && few+=("${MEMBERS[@]}")
loop_members 1 57M && ALL=("${few[@]}" "${MEMBERS[@]}")
check 0-original-64K-unequal made 0 original 64 5
check 0-alternate-64K-unequal made 0 alternate 64 5
