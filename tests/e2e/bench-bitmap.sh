#!/usr/bin/env bash
# What the write-intent bitmap costs: random 4 KiB writes to an array with it and to one without, of one daemon, AT ONCE, so that
# whatever else the machine does hits both alike; from pair to pair they change members and order. Not a test: no threshold;
# prints every figure, then a table with the median of the pairs' ratios.
#
#   cargo xtask e2e tests/e2e/bench-bitmap.sh
#
# RAIDD_BENCH_SHAPES ("5/64M 6/64M 5/1M"; "5/none" shows what the method itself does), RAIDD_BENCH_ROUNDS (8), RAIDD_BENCH_RUN (seconds of each pair, 8)
# bed: uml
# time: 600
# mem: 6G
# append: brd.rd_size=262144
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need bench fio || exit 0
RUN=${RAIDD_BENCH_RUN:-8}
ROUNDS=${RAIDD_BENCH_ROUNDS:-8}
SHAPES=${RAIDD_BENCH_SHAPES:-5/64M 6/64M 5/1M}

make() { # NAME LEVEL KIND MEMBER...
  local name=$1 level=$2 kind=$3 bitmap=(--bitmap none); shift 3
  [ "$kind" = none ] || bitmap=(--bitmap internal --bitmap-chunk "$kind")
  create_array "$level" --name "$name" --force --assume-clean "${bitmap[@]}" "$@" > /dev/null
}
# both A B: writes a second to each of two devices at once.
both() {
  fio --direct=1 --ioengine=libaio --time_based --runtime="$RUN" --ramp_time=1 --rw=randwrite --bs=4k --iodepth=16 --norandommap --size=100% \
    --output-format=terse --terse-version=3 --name=a --filename="$1" --name=b --filename="$2" | awk -F ';' '{ printf "%s ", $49 }'
}

check members members 8
FIRST=("${MEMBERS[@]:0:4}") SECOND=("${MEMBERS[@]:4:4}")
# RAM disks take their memory at the first write.
for m in "${MEMBERS[@]}"; do dd if=/dev/zero of="$m" bs=1M oflag=direct status=none 2> /dev/null; done
check daemon start_daemon
say "kernel $(uname -r), $(nproc) CPUs, 4 + 4 members of 256 MiB, chunk 64 KiB, fio randwrite 4 KiB, depth 16 each, $RUN s"
for shape in $SHAPES; do
  level=${shape%/*} kind=${shape#*/}
  : > "$WORK/pairs"
  for ((round = 1; round <= ROUNDS; round++)); do
    if [ $((round % 2)) = 1 ]; then with=("${FIRST[@]}") without=("${SECOND[@]}"); else with=("${SECOND[@]}") without=("${FIRST[@]}"); fi
    if [ $((round / 2 % 2)) = 0 ]; then
      make with "$level" "$kind" "${with[@]}" || break
      a=$ARRAY_DEV
      make without "$level" none "${without[@]}" || break
      read -r x y < <(both "$a" "$ARRAY_DEV"; echo)
    else
      make without "$level" none "${without[@]}" || break
      a=$ARRAY_DEV
      make with "$level" "$kind" "${with[@]}" || break
      read -r y x < <(both "$a" "$ARRAY_DEV"; echo)
    fi
    say "raid$level $kind: $x with, $y without"
    [ "${y:-0}" -gt 0 ] && awk -v x="$x" -v y="$y" 'BEGIN { print x / y, x, y }' >> "$WORK/pairs"
    raidctl stop with > /dev/null; raidctl stop without > /dev/null
  done
  mid() { cut -d ' ' -f "$1" "$WORK/pairs" | sort -n | awk '{ a[NR] = $1 } END { print NR % 2 ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'; }
  say "| raid$level | $kind | $(wc -l < "$WORK/pairs") | $(mid 2) | $(mid 3) | $(mid 1) | $(cut -d ' ' -f 1 "$WORK/pairs" | sort -n | head -n 1) | $(cut -d ' ' -f 1 "$WORK/pairs" | sort -n | tail -n 1) |"
done
check figures [ -s "$WORK/pairs" ]
