# What the scripts 3x share, besides lib.sh: members whose faults can be switched on, deterministic data, looks at the
# array's state. Sourced after lib.sh.
# shellcheck shell=bash

DM=()
SECTORS=()

# dm_wrap MIB DEVICE...: device-mapper nodes over the first MIB MiB of each device; MEMBERS becomes them, UNDER what is
# below them.
dm_wrap() {
  local mib=$1 dev i=${#DM[@]}; shift
  MEMBERS=() UNDER=()
  for dev in "$@"; do
    dmsetup create "rf$i" --table "0 $((mib * 2048)) linear $dev 0" || return 1
    # Without its node a later dd would write an ordinary file.
    [ -b "/dev/mapper/rf$i" ] || { say "no node for rf$i"; return 1; }
    DM+=("rf$i") MEMBERS+=("/dev/mapper/rf$i") UNDER+=("$dev")
    SECTORS[i]=$((mib * 2048))
    i=$((i + 1))
  done
}

# dm_table N TABLE...: gives node N another table (lines), live; who holds it keeps it.
dm_table() {
  local n=$1; shift
  printf '%s\n' "$@" | dmsetup load "rf$n" && dmsetup suspend --noflush --nolockfs "rf$n" && dmsetup resume "rf$n"
}

dm_heal() { dm_table "$1" "0 ${SECTORS[$1]} linear ${UNDER[$1]} 0"; }
dm_error() { dm_table "$1" "0 ${SECTORS[$1]} error"; }
# Reads go through, writes fail.
dm_error_writes() { dm_table "$1" "0 ${SECTORS[$1]} flakey ${UNDER[$1]} 0 0 3600 1 error_writes"; }
# Everything fails from sector FROM on for COUNT sectors.
dm_error_region() { # N FROM COUNT
  local end=$(($2 + $3))
  dm_table "$1" "0 $2 linear ${UNDER[$1]} 0" "$2 $3 error" "$end $((SECTORS[$1] - end)) linear ${UNDER[$1]} $end"
}
dm_remove() { local d; for d in "${DM[@]}"; do dmsetup remove "$d"; done; DM=(); }

# stream SEED BYTES: bytes that depend on the seed and the position; no two sectors are alike.
stream() { seq "$(($1 + 1))00000000000" inf 2> /dev/null | head -c "$2"; }

# put DEVICE OFFSET SEED BYTES: writes a stream, directly and flushed. BYTES is at most 4 MiB per request.
put() {
  [ -b "$1" ] || { echo "$1 is no block device"; return 2; }
  stream "$3" "$4" | dd of="$1" bs="$(($4 > 4194304 ? 4194304 : $4))" iflag=fullblock oflag=direct,seek_bytes seek="$2" conv=notrunc,fsync status=none
}

# same DEVICE OFFSET SEED BYTES: whether put's bytes are there, read directly.
same() {
  cmp <(stream "$3" "$4") <(dd if="$1" bs="$(($4 > 4194304 ? 4194304 : $4))" iflag=direct,skip_bytes,count_bytes skip="$2" count="$4" status=none)
}

# zeroes DEVICE OFFSET BYTES: whether they are all zero.
zeroes() { dd if="$1" bs=1M iflag=direct,skip_bytes,count_bytes skip="$2" count="$3" status=none | cmp -n "$3" - /dev/zero; }

# sum DEVICE: of all its bytes.
sum() { dd if="$1" bs=4M iflag=direct status=none | sha256sum | cut -d ' ' -f 1; }

# field KEY [NAME]: of raidctl detail.
field() { raidctl detail --output json "${2:-$ARRAY_DEV}" | json "$1"; }

# member_states [NAME]: one letter per slot: i(n_sync), f(aulty), m(issing).
member_states() {
  raidctl detail --output json "${1:-$ARRAY_DEV}" | tr -d ' \n' | grep -oE '"members":\[[^]]*\]' | grep -oE '"state":"[a-z]' | tr -dc '\n[imfrs]' |
    sed 's/^.*\(.\)$/\1/' | tr -d '\n'
}

# states WANT: whether the members are in these states, soon.
states() { local i; for i in {1..50}; do [ "$(member_states)" = "$1" ] && return 0; sleep 0.1; done; say "members are $(member_states)"; return 1; }

# array_state MEMBER: what examine says of the array as this member knows it, a letter per slot.
array_state() { raidctl examine --output json "$1" | json array_state; }
# md_array_state MEMBER: the same in mdadm's words.
md_array_state() { mdadm --examine "$1" | awk '/Array State/ { print $4 }'; }

# says WORD: whether the array's state has this word. (The members' states come before it, so the last one counts.)
says() { raidctl detail --output json "${2:-$ARRAY_DEV}" | grep -oE '"state": *"[^"]*"' | tail -n 1 | grep -w "$1"; }

detail_test() { raidctl detail --test "${1:-$ARRAY_DEV}" > /dev/null; echo $?; }
alive() { kill -0 "$DAEMON" 2> /dev/null; }
# soon COMMAND...: within ten seconds.
soon() { local i; for i in {1..100}; do "$@" && return 0; sleep 0.1; done; return 1; }

# parity_right [MEMBER...]: md takes the members (default: all), checks every stripe and finds nothing. The members
# must be stopped; they are clean afterwards as well.
parity_right() {
  local found
  md_assemble "${@:-${MEMBERS[@]}}" || return 1
  found=$(md_mismatches)
  md_stop || return 1
  [ "$found" = 0 ] || { echo "mismatch_cnt $found"; return 1; }
}

# load NAME SECONDS SIZE_MIB [fio options]: writes and verifies the first 3 * SIZE_MIB of the array again and again in
# three jobs that do not touch one another, in the background. finish_load checks that fio saw no error and no wrong byte.
load() {
  local name=$1 seconds=$2 size=$3; shift 3
  fio --name="$name" --verify_state_save=0 --filename="$ARRAY_DEV" --direct=1 --ioengine=libaio --iodepth=8 --numjobs=3 --size="${size}M" \
    --offset_increment="${size}M" --rw=randwrite --bsrange=4k-512k --verify=crc32c --verify_fatal=1 --serialize_overlap=1 \
    --time_based --runtime="$seconds" --randrepeat=1 --group_reporting "$@" > "$WORK/fio.out" 2>&1 &
  LOAD=$!
}
finish_load() { wait "$LOAD" || { tail -n 12 "$WORK/fio.out"; return 1; }; }
