#!/usr/bin/env bash
# Speed on the bad days, raidd beside mdadm at its best, interleaved in one run: sequential reads healthy and with one and
# two members lost, the rebuild of an idle array and beside a load. Not a test: no threshold, a table on standard output.
#
#   cargo xtask e2e --release tests/e2e/bench-faults.sh
#
# RAIDD_BENCH_LEVELS ("5 6"), RAIDD_BENCH_ROUNDS (3), RAIDD_BENCH_RUN (seconds of each measurement, 5),
# RAIDD_BENCH_LOAD ("--rw=randrw --bs=64k --iodepth=8 --numjobs=2", fio options of the load beside a rebuild)
# bed: uml
# time: 1200
# mem: 8G
# append: brd.rd_size=524288
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need bench fio mdadm || exit 0
RUN=${RAIDD_BENCH_RUN:-5}
ROUNDS=${RAIDD_BENCH_ROUNDS:-3}
LOAD_OPTIONS=${RAIDD_BENCH_LOAD:---rw=randrw --bs=64k --iodepth=8 --numjobs=2}
FIGURES=$WORK/figures
: > "$FIGURES"

# fio_rate KEY OPTIONS...: MB/s, read and write together.
fio_rate() {
  fio --name=bench --direct=1 --ioengine=libaio --time_based --runtime="$RUN" --ramp_time=1 --group_reporting --output-format=terse --terse-version=3 "$@" |
    awk -F ';' '{ printf "%.0f\n", ($7 + $48) * 1.024 / 1000 }'
}
read_rate() { fio_rate --filename="$1" --rw=read --bs=2m --iodepth=16 --numjobs=2 --size=50% --offset_increment=50%; }
# shellcheck disable=SC2086
load_rate() { fio_rate --filename="$1" $LOAD_OPTIONS; }

note() { printf '%s %s %s\n' "$1" "$2" "$3" >> "$FIGURES"; say "$1 $2: $3"; } # SIDE WHAT FIGURE
# median SIDE WHAT: of what was noted.
median() { awk -v s="$1" -v w="$2" '$1 == s && $2 == w { print $3 }' "$FIGURES" | sort -n | awk '{ a[NR] = $1 } END { if (NR) print a[int((NR + 1) / 2)]; else print "-" }'; }
now() { date +%s.%N; }
# mib_rate MIB FROM TO: MB/s.
mib_rate() { awk -v m="$1" -v a="$2" -v b="$3" 'BEGIN { printf "%.0f\n", m * 1.048576 / (b - a) }'; }

# --- the two sides: make LEVEL, lose SLOT, give SLOT (begins a rebuild), rebuilding, done, gone ------------------------
raidd_make() { create_array "$1" --name bench --force --assume-clean "${ALL[@]}" > /dev/null && DEV=$ARRAY_DEV && raidctl set bench resync.ceiling=none > /dev/null; }
raidd_lose() { raidctl fail bench "${ALL[$1]}" > /dev/null && raidctl remove bench failed > /dev/null && raidctl zero --force "${ALL[$1]}" > /dev/null; }
raidd_give() { raidctl add --force bench "${ALL[$1]}" > /dev/null; }
raidd_whole() { [ "$(member_states bench)" = iiiiiiii ]; }
raidd_beside() { raidctl set bench resync.floor="${1}M" > /dev/null; }
raidd_gone() { raidctl stop bench > /dev/null; }

md_sys() { echo "$2" > "/sys/block/md127/md/$1"; }
md_make() {
  local b=(--bitmap=none)
  mdadm --create /dev/md127 --run --metadata=1.2 --assume-clean "${b[@]}" --level="$1" --chunk=512 --raid-devices=8 "${ALL[@]}" > "$WORK/md.out" 2>&1 || return 1
  DEV=/dev/md127
  md_knobs "${BEST:-4 4096}" && md_sys sync_speed_max 4000000
}
md_knobs() { md_sys group_thread_cnt "${1% *}" && md_sys stripe_cache_size "${1#* }"; }
md_lose() { mdadm /dev/md127 --fail "${ALL[$1]}" --remove "${ALL[$1]}" > /dev/null 2>&1 && mdadm --zero-superblock "${ALL[$1]}"; }
md_give() { mdadm /dev/md127 --add "${ALL[$1]}" > /dev/null 2>&1; }
md_whole() { [ "$(cat /sys/block/md127/md/degraded)" = 0 ] && [ "$(cat /sys/block/md127/md/sync_action)" = idle ]; }
md_beside() { md_sys sync_speed_min "$(($1 * 1000))"; }
md_gone() { md_stop && mdadm --zero-superblock "${ALL[@]}"; }

# until_whole SIDE SECONDS
until_whole() {
  local end=$((SECONDS + $2))
  until "${1}_whole"; do [ $SECONDS -lt $end ] || return 1; sleep 0.05; done
}

# tune LEVEL: the knobs of md that suit its degraded reads, and those for its rebuild, are looked for together: the best sum.
tune() {
  local knobs rate top=0
  md_make "$1" && md_lose 1 || return 1
  for knobs in "0 256" "0 4096" "2 4096" "4 4096" "2 16384" "4 16384"; do
    md_knobs "$knobs"
    rate=$(RUN=2 read_rate "$DEV")
    say "md RAID $1 degraded read with group_thread_cnt and stripe_cache_size $knobs: $rate MB/s"
    [ "$rate" -le $top ] || { top=$rate; BEST=$knobs; }
  done
  md_gone
}

# round SIDE LEVEL: everything once.
round() {
  local side=$1 level=$2 from to alone beside started
  "${side}_make" "$level" || return 1
  note "$side" "$level-read-healthy" "$(read_rate "$DEV")"
  "${side}_lose" 1 || return 1
  note "$side" "$level-read-one-lost" "$(read_rate "$DEV")"
  if [ "$level" = 6 ]; then "${side}_lose" 4 && note "$side" "$level-read-two-lost" "$(read_rate "$DEV")" || return 1; fi
  # Idle.
  "${side}_beside" 4000
  from=$(now); "${side}_give" 1 || return 1
  [ "$level" = 5 ] || "${side}_give" 4 || return 1
  until_whole "$side" 300 || return 1
  to=$(now); note "$side" "$level-rebuild-idle" "$(mib_rate "$MEMBER_MIB" "$from" "$to")"
  # Beside a load, which has run alone before.
  "${side}_lose" 2 || return 1
  "${side}_beside" 1
  alone=$(load_rate "$DEV"); note "$side" "$level-load-alone" "$alone"
  "${side}_give" 2 || return 1
  started=$(now)
  RUN=$((RUN * 2)) load_rate "$DEV" > "$WORK/beside" &
  beside=$!
  # What is done when the load ends counts; or all, where it took less.
  while kill -0 $beside 2> /dev/null; do "${side}_whole" && break; sleep 0.1; done
  to=$(now); note "$side" "$level-rebuild-beside" "$(mib_rate "$("${side}_done")" "$started" "$to")"
  wait $beside
  note "$side" "$level-load-beside" "$(cat "$WORK/beside")"
  "${side}_gone"
}
# MiB of each new member that are done.
md_done() { md_whole && { echo "$MEMBER_MIB"; return; }; awk '{ print int($1 / 2048) }' /sys/block/md127/md/sync_completed; }
raidd_done() { raidd_whole && { echo "$MEMBER_MIB"; return; }; echo $(($(field done_bytes bench) * MEMBER_MIB / $(field total_bytes bench))); }

check members members 8
ALL=("${MEMBERS[@]}")
MEMBER_MIB=$(($(blockdev --getsize64 "${ALL[0]}") >> 20))
check fill fill_zero "${ALL[@]}"
check daemon start_daemon
note raw read-one "$(fio_rate --filename="${ALL[0]}" --rw=read --bs=512k --iodepth=16)"
note raw write-one "$(fio_rate --filename="${ALL[0]}" --rw=write --bs=512k --iodepth=16)"
note raw read-all "$(fio_rate --filename="$(IFS=:; echo "${ALL[*]}")" --rw=read --bs=512k --iodepth=32 --numjobs=2)"
for level in ${RAIDD_BENCH_LEVELS:-5 6}; do
  check "tune-$level" tune "$level"
  say "md RAID $level: group_thread_cnt and stripe_cache_size $BEST"
  for ((n = 0; n < ROUNDS; n++)); do
    order="raidd md"; [ $((n % 2)) -eq 0 ] || order="md raidd"
    for side in $order; do check "round-$level-$n-$side" round "$side" "$level" || { raidd_gone; md_gone; } > /dev/null 2>&1; done
  done
done
echo "| MB/s, median of $ROUNDS | raidd | mdadm, tuned | ratio |"
echo "|---|---|---|---|"
awk '$1 != "raw" { print $2 }' "$FIGURES" | awk '!seen[$0]++' | while read -r what; do
  awk -v w="$what" -v r="$(median raidd "$what")" -v m="$(median md "$what")" 'BEGIN { printf "| %s | %s | %s | %.2f |\n", w, r, m, (m > 0 ? r / m : 0) }'
done
echo "| one raw member: read, write | $(median raw read-one), $(median raw write-one) | | |"
echo "| all raw members: read | $(median raw read-all) | | |"
check daemon-ends stop_daemon
