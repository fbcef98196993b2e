#!/usr/bin/env bash
# Arrays made and filled by mdadm, with every layout it can make and members that begin at different places: raidctl
# reads every byte right, writes, and md agrees afterwards, also with members missing.
# bed: uml
# time: 480
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/interop.sh"

need imported pattern mdadm blkdiscard || exit 0
check daemon start_daemon
DATA=12   # MiB of each member that hold data, at least

# imported LEVEL LAYOUT CHUNK_KIB MEMBERS [SIZE_MIB...]: one array, there and back. Two pairs (or members) are taken away.
imported() {
  local level=$1 layout=$2 chunk=$3 n=$4 i given=() lost=(); shift 4
  MEMBERS=("${ALL[@]:0:n}")
  for ((i = 0; i < n; i++)); do given+=("${MEMBERS[i]}:$((1024 + (i * 5 + n) % 7 * 512))K"); done
  [ "$level" = 0 ] || set -- --size=${DATA}M
  [ "$level" != 5 ] || lost=("$((chunk % n))" "$((n - 1))")
  [ "$level" != 6 ] || lost=("$((chunk % (n - 1))) $((chunk % (n - 1) + 1))" "0 $((n - 1))")
  md_create "$level" "$layout" "$chunk" "$@" --data-offset=variable --raid-devices="$n" "${given[@]}" || return 1
  [ "$(mdadm --examine "${MEMBERS[@]}" | grep 'Data Offset' | sort -u | wc -l)" -gt 1 ] || { say "equal data offsets"; return 1; }
  pattern write $MD && md_stop || return 1
  assemble "${MEMBERS[@]}" || return 1
  pattern verify "$ARRAY_DEV" || return 1
  pattern scatter "$ARRAY_DEV" --seed 2 && pattern verify "$ARRAY_DEV" --over 2 || return 1
  stop_array || return 1
  md_check pattern verify $MD --over 2 || return 1
  for i in "${lost[@]}"; do
    lacking "$i" pattern verify --over 2 || return 1
    md_lacking "$i" pattern verify $MD --over 2 || return 1
  done
}

check loops loop_members 8 20M
ALL=("${MEMBERS[@]}")
i=0
CHUNKS=(64 4 512 16 128 1024 8 32 256)
for layout in left-asymmetric right-asymmetric left-symmetric right-symmetric parity-first parity-last; do
  chunk=${CHUNKS[i % 9]} n=$((3 + i % 4)) i=$((i + 1))
  check "5-$layout-${chunk}K-$n" imported 5 $layout "$chunk" $n
done
for layout in left-asymmetric right-asymmetric left-symmetric right-symmetric parity-first parity-last \
    ddf-zero-restart ddf-N-restart ddf-N-continue \
    left-asymmetric-6 right-asymmetric-6 left-symmetric-6 right-symmetric-6 parity-first-6; do
  chunk=${CHUNKS[i % 9]} n=$((4 + i % 5)) i=$((i + 1))
  check "6-$layout-${chunk}K-$n" imported 6 $layout "$chunk" $n
done

# RAID 0 over unequal members: three zones, where the two mappings differ.
loop_members 2 24M && few=("${MEMBERS[@]}") && loop_members 2 40M && few+=("${MEMBERS[@]}")
loop_members 1 57M && ALL=("${few[@]}" "${MEMBERS[@]}")
check 0-original-64K-5 imported 0 original 64 5
check 0-alternate-16K-5 imported 0 alternate 16 5
check 0-alternate-1024K-4 imported 0 alternate 1024 4
