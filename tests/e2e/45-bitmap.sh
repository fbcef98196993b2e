#!/usr/bin/env bash
# The write-intent bitmap of raidd: made as mdadm makes it, bits on all members before data, cleared when idle and at a stop,
# read by mdadm -X; and after a crash in the middle of writes the kernel takes it and resyncs nothing but what it names.
# bed: uml
# time: 120
# mem: 4G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need fio mdadm || exit 0
# What mdadm says of a member's bitmap.
md_bits() { mdadm -X "$1" | sed -nE 's/.*Bitmap : ([0-9]+) bits \(chunks\), ([0-9]+) dirty.*/\1 \2/p'; }
md_events() { mdadm -X "$1" | awk '$1 == "Events" && $2 == ":" { print $3 }'; }
sb_events() { mdadm --examine "$1" | awk '/Events/ { print $3 }'; }
patient() { local i; for i in {1..60}; do "$@" && return 0; sleep 0.5; done; return 1; }

check members loop_members 4 300M
check daemon start_daemon

# --- made ------------------------------------------------------------------------------------------------------------
refused raid0 1 'no parity' raidctl create --yes --level 0 --bitmap internal "${MEMBERS[@]}"
refused chunk 1 'at least' raidctl create --yes --level 5 --bitmap-chunk 4K "${MEMBERS[@]}"
check none create_array 5 --name plain --bitmap none --assume-clean "${MEMBERS[@]}"
equal none-detail null "$(field bitmap)"
check none-stop stop_array
refused none-examine 1 'no bitmap' raidctl examine --bitmap "${MEMBERS[0]}"
check default create_array 5 --name by-default --force --assume-clean "${MEMBERS[@]}"
equal default-chunk 67108864 "$(raidctl examine --bitmap --output json "${MEMBERS[1]}" | json chunk_bytes)"
check default-stop stop_array
check create create_array 5 --name bits --force --bitmap internal --bitmap-chunk 1M "${MEMBERS[@]}"
check resync wait_resync
equal detail-chunk 1048576 "$(raidctl detail --output json bits | tr -d ' \n' | grep -oE '"bitmap":\{[^}]*' | grep -oE '"chunk_bytes":[0-9]+' | grep -oE '[0-9]+')"
check detail-table bash -c "raidctl detail bits | grep -E 'Bitmap : internal, chunk 1 MiB, [0-9]+ of [0-9]+ chunks dirty'"
CHUNKS=$(md_bits "${MEMBERS[0]}" | cut -d ' ' -f 1)
all_clean() { local m; for m in "${MEMBERS[@]}"; do [ "$(md_bits "$m")" = "$CHUNKS 0" ] || return 1; done; }
check idle-clears patient all_clean

# --- set before data, on every member -----------------------------------------------------------------------------------
check put put "$ARRAY_DEV" $((150 << 20)) 1 1048576
for m in "${MEMBERS[@]}"; do
  dirty=$(md_bits "$m" | cut -d ' ' -f 2)
  [ "$dirty" -ge 1 ] && [ "$dirty" -le 3 ] && ok "bits-$(basename "$m")" || not_ok "bits-$(basename "$m")" "$dirty are dirty"
done
check idle-clears-again patient all_clean
check put-again put "$ARRAY_DEV" $((10 << 20)) 2 1048576
check stop stop_array
check stop-clears all_clean
for m in "${MEMBERS[@]}"; do equal "events-$(basename "$m")" "$(sb_events "$m")" "$(md_events "$m")"; done
check parity parity_right

# --- killed in the middle of writes; the kernel goes on ------------------------------------------------------------------
check again raidctl assemble "${MEMBERS[@]}"
ARRAY_DEV=/dev/ublkb0
check flushed put "$ARRAY_DEV" $((60 << 20)) 3 1048576
fio --name=kill --filename="$ARRAY_DEV" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bsrange=4k-128k --size=40M --time_based --runtime=60 > /dev/null 2>&1 &
sleep 2
check crash crash_daemon
check daemon-ends stop_daemon
dirty=$(md_bits "${MEMBERS[2]}" | cut -d ' ' -f 2)
[ "$dirty" -gt 5 ] && [ "$dirty" -lt 40 ] && ok crash-bits || not_ok crash-bits "$dirty of $CHUNKS are dirty"
# Parity garbage under a clean bit, far from the writes: a resync of all would mend it. Stripe 3200 of 64 KiB chunks: its
# parity is on member 3.
first=$(raidctl examine --output json "${MEMBERS[3]}" | json data_offset_bytes)
[ -n "$first" ] || first=$(($(mdadm --examine "${MEMBERS[3]}" | awk '/Data Offset/ { print $4 }') * 512))
dd if=/dev/urandom of="${MEMBERS[3]}" bs=4096 count=1 oflag=direct,seek_bytes seek=$((first + 3200 * 65536)) conv=notrunc status=none
check md-assembles md_assemble "${MEMBERS[@]}"
check md-resyncs bash -c "dmesg | grep 'resync of RAID array md127'"
check md-idle md_idle /sys/block/md127/md
equal md-only-dirty 8 "$(md_mismatches)"
echo repair > /sys/block/md127/md/sync_action; check md-repaired md_idle /sys/block/md127/md
equal md-no-more 0 "$(md_mismatches)"
check md-data same /dev/md127 $((60 << 20)) 3 1048576
check md-stop md_stop
