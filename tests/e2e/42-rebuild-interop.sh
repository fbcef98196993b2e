#!/usr/bin/env bash
# Rebuilds that change hands: stopped under raidctl and gone on with by md from the recovery_offset, and the other way round;
# one that is cut by the death of the daemon goes on from its checkpoint.
# bed: uml
# time: 240
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/interop.sh"
. "$(dirname "$0")/faults.sh"

need rebuild-interop fio mdadm || exit 0
SYS=/sys/block/md127/md
# recovery MEMBER: sectors that are rebuilt on it.
recovery() { local bytes; bytes=$(raidctl examine --output json "$1" | json recovery_offset_bytes | tr -dc 0-9); echo $((${bytes:-0} / 512)); }
same_sum() { [ "$(sum "$1")" = "$2" ]; }
# percent: of the rebuild, whole.
percent() { raidctl rebuild status --output json "$1" | json percent | cut -d . -f 1; }
past() { [ "$(percent "$1")" -ge "$2" ] 2> /dev/null; }
# pauses ARRAY PERCENT: lets the rebuild get so far, and no further for now.
pauses() { local i; for i in {1..300}; do past "$1" "$2" && break; sleep 0.1; done; past "$1" "$2" && raidctl set "$1" resync.paused=yes; }
md_degraded() { [ "$(cat $SYS/degraded)" = "$1" ]; }

check loops loop_members 7 64M
check members nvme_loop "${MEMBERS[@]}"
N=("${MEMBERS[@]}")
check daemon start_daemon

# --- ours, then md ----------------------------------------------------------------------------------------------------
MEMBERS=("${N[@]:0:5}")
check create create_array 5 --name half --assume-clean "${MEMBERS[@]}"
check put put "$ARRAY_DEV" 0 3 $((64 << 20))
check slow raidctl set half resync.ceiling=3M resync.floor=1M
check fail raidctl fail half "${N[2]}"
check remove raidctl remove half failed
check put-degraded put "$ARRAY_DEV" $((160 << 20)) 4 $((32 << 20))
check add raidctl add half "${N[5]}"
check goes pauses half 25
equal rebuilding iirii "$(member_states)"
check put-meanwhile put "$ARRAY_DEV" $((100 << 20)) 5 $((32 << 20))
want=$(sum "$ARRAY_DEV")
check stop raidctl stop half
from=$(recovery "${N[5]}")
size=$(($(raidctl examine --output json "${N[0]}" | json member_bytes) / 512))
if [ "${from:-0}" -gt $((size / 5)) ] && [ "$from" -lt "$size" ]; then ok checkpoint; else not_ok checkpoint "recovery_offset $from of $size"; fi
check md-recovery-offset bash -c "mdadm --examine ${N[5]} | grep -q 'Recovery Offset : $from sectors'"
MEMBERS=("${N[0]}" "${N[1]}" "${N[5]}" "${N[3]}" "${N[4]}")
echo 1000 > /proc/sys/dev/raid/speed_limit_max 2> /dev/null
check md-takes-it md_assemble "${MEMBERS[@]}"
check md-same same_sum $MD "$want"
equal md-recovers recover "$(cat $SYS/sync_action)"
done=$(cut -d ' ' -f 1 $SYS/sync_completed)
if [ "${done:-0}" -ge "$from" ] 2> /dev/null; then ok md-goes-on; else not_ok md-goes-on "md is at $done, we were at $from"; fi
echo 1000000 > /proc/sys/dev/raid/speed_limit_max; echo 1000000 > $SYS/sync_speed_max; echo 1000000 > $SYS/sync_speed_min
check md-idle md_idle $SYS
check md-whole md_degraded 0
equal md-mismatches 0 "$(md_mismatches)"
check md-stop md_stop
check md-without-each every 1 same_sum $MD "$want"
check assemble-whole assemble "${MEMBERS[@]}"
equal whole iiiii "$(member_states)"
check same-whole same_sum "$ARRAY_DEV" "$want"
check stop-whole stop_array

# --- md's, then ours -----------------------------------------------------------------------------------------------------
check md-again md_assemble "${MEMBERS[@]}"
check md-fail mdadm $MD --fail "${N[1]}" --remove "${N[1]}"
check md-put put $MD $((10 << 20)) 6 $((32 << 20))
echo 4000 > $SYS/sync_speed_max; echo 1000 > $SYS/sync_speed_min
mdadm --zero-superblock "${N[1]}" > /dev/null 2>&1
check md-add mdadm $MD --add "${N[6]}"
md_past() { [ "$(cut -d ' ' -f 1 $SYS/sync_completed)" -gt "$1" ] 2> /dev/null; }
check md-rebuilds soon md_past $((size / 8))
echo frozen > $SYS/sync_action
want=$(sum $MD)
check md-stop-half md_stop
from=$(recovery "${N[6]}")
if [ "${from:-0}" -gt 0 ] && [ "$from" -lt "$size" ]; then ok md-checkpoint; else not_ok md-checkpoint "recovery_offset $from of $size"; fi
MEMBERS=("${N[0]}" "${N[6]}" "${N[5]}" "${N[3]}" "${N[4]}")
refused goes-on-from 0 'its rebuild goes on from [1-9]' raidctl assemble "${MEMBERS[@]}"
ARRAY_DEV=$(raidctl detail --output json half | json device)
check same-half same_sum "$ARRAY_DEV" "$want"
timeout 60 raidctl wait half > /dev/null
equal whole-again iiiii "$(member_states half)"
check same-after same_sum "$ARRAY_DEV" "$want"
check put-after put "$ARRAY_DEV" $((150 << 20)) 9 $((16 << 20))
want=$(sum "$ARRAY_DEV")
check stop-after raidctl stop half
check parity parity_right "${MEMBERS[@]}"
check md-without-each-again every 1 same_sum $MD "$want"

# --- the daemon dies in the middle -----------------------------------------------------------------------------------------
check assemble-3 assemble "${MEMBERS[@]}"
check slow-3 raidctl set half resync.ceiling=3M resync.floor=1M
check fail-3 raidctl fail half "${N[4]}"
check remove-3 raidctl remove half failed
check add-3 raidctl add --force half "${N[2]}"
check goes-3 pauses half 10
sleep 22   # a checkpoint is written every ten seconds, and says what the one before has flushed
kill -KILL "$DAEMON"; wait "$DAEMON" 2> /dev/null
# Before a successor goes on with the array: it knows of no limit to the rate, and soon has all of it.
from=$(recovery "${N[2]}")
check daemon-again start_daemon
MEMBERS=("${N[0]}" "${N[6]}" "${N[5]}" "${N[3]}" "${N[2]}")
if [ "${from:-0}" -gt 0 ]; then ok checkpoint-3; else not_ok checkpoint-3 "recovery_offset $from"; fi
check assemble-4 assemble "${MEMBERS[@]}"
timeout 60 raidctl wait half > /dev/null
equal whole-4 iiiii "$(member_states half)"
check same-4 same_sum "$ARRAY_DEV" "$want"
check stop-4 raidctl stop half
check parity-4 parity_right "${MEMBERS[@]}"
check md-without-each-4 every 1 same_sum $MD "$want"
