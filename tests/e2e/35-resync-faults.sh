#!/usr/bin/env bash
# Faults while parity is not in sync yet: a stop and a kill in the middle of the resync (it goes on), a member with sectors
# that cannot be read or written there; and a member that hangs for a while, which is no fault.
# bed: uml
# time: 180
# mem: 4G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need resync fio dmsetup mdadm || exit 0
MIB=96
# A resync that takes about half a minute.
printf 'defaults:\n  resync:\n    floor: 1M\n    ceiling: 3M\n' > "$WORK/slow.yaml"
done_bytes() { field done_bytes "${1:-$ARRAY_DEV}"; }
# What is left to be done: with a bitmap a resync counts what the bitmap names when it begins, or goes on.
left_bytes() { echo $(($(field total_bytes) - $(field done_bytes))); }
syncing() { says resyncing; }

check loops loop_members 4 "${MIB}M"
NODES=("${MEMBERS[@]}")
# Old bytes on the members: parity is wrong everywhere until it is made.
for ((i = 0; i < 4; i++)); do stream "$((50 + i))" $((MIB << 20)) > "${NODES[i]}"; done
check wrap dm_wrap "$MIB" "${NODES[@]}"
check daemon start_daemon --config "$WORK/slow.yaml"

# --- stop and kill in the middle ----------------------------------------------------------------------------------
check create create_array 5 --name sync --force "${MEMBERS[@]}"
check syncing syncing
check put put "$ARRAY_DEV" $((40 << 20)) 1 5000192
sleep 3
first=$(left_bytes)
check stop stop_array
check examine-says-where bash -c "raidctl examine --output json ${MEMBERS[0]} | grep -qE '\"resync_offset_bytes\": [1-9]'"
check assemble raidctl assemble "${MEMBERS[@]}"
check goes-on syncing
second=$(left_bytes)
[ "$second" -gt 0 ] && [ "$second" -le "$first" ] && [ "$first" -lt $((MIB << 20)) ] && ok from-there || not_ok from-there "left were $first, now $second"
check same same "$ARRAY_DEV" $((40 << 20)) 1 5000192
kill -KILL "$DAEMON"; wait "$DAEMON" 2> /dev/null
check daemon-again start_daemon --config "$WORK/slow.yaml"
check assemble-after-kill raidctl assemble "${MEMBERS[@]}"
check syncing-after-kill syncing

# --- unreadable where parity is not in sync ---------------------------------------------------------------------------
# Near the end of the members, far from being in sync: what has been written has right parity all the same, whether
# stripes were written whole or in part, and is given back where its member cannot.
at=$(($(raidctl examine --output json "${MEMBERS[0]}" | json data_offset_bytes) / 512))
size=$(blockdev --getsize64 "$ARRAY_DEV")
near_end=$((size / 196608 * 196608 - 40 * 196608))
check put-whole put "$ARRAY_DEV" "$near_end" 2 $((4 * 196608))
for i in 0 1 2 3 4 5; do check "put-part-$i" put "$ARRAY_DEV" $((near_end + 4 * 196608 + i * 131072 + 8192)) $((60 + i)) 12288; done
check still-syncing syncing
[ "$(done_bytes)" -lt $((near_end / 3)) ] && ok not-there-yet || not_ok not-there-yet "$(done_bytes) of $((near_end / 3))"
written() {
  same "$ARRAY_DEV" "$near_end" 2 $((4 * 196608)) || return 1
  for i in 0 1 2 3 4 5; do same "$ARRAY_DEV" $((near_end + 4 * 196608 + i * 131072 + 8192)) $((60 + i)) 12288 || return 1; done
}
check readable written
check region dm_error_region 0 $((at + near_end / 3 / 512)) 1024
check decoded written
check alive alive
# Writing it back did not help, so that the member is out; nothing that was written is lost.
check member-out states fiii
check not-in-sync-any-more bash -c "! raidctl detail --output json $ARRAY_DEV | grep -q resyncing"
check old-data same "$ARRAY_DEV" $((40 << 20)) 1 5000192
check stop-degraded stop_array
dm_heal 0
# With no redundancy left nothing can be out of sync: as with MD the array is clean, and starts without the stale member.
check assemble-degraded raidctl assemble "${MEMBERS[@]}"
check written-degraded written
check old-data-degraded same "$ARRAY_DEV" $((40 << 20)) 1 5000192
check stop-degraded-again stop_array
all=("${MEMBERS[@]}") MEMBERS=("${MEMBERS[@]:1}")
check md-degraded with_md same /dev/md127 $((40 << 20)) 1 5000192
MEMBERS=("${all[@]}")

# --- a member that hangs ----------------------------------------------------------------------------------------------
check daemon-ends stop_daemon
check fast-daemon start_daemon
check create-hung create_array 6 --name hung --force "${MEMBERS[@]}"
check put-hung put "$ARRAY_DEV" $((120 << 20)) 3 5000192
check resync-hung wait_resync
load hang 8 20
sleep 2
# It hangs, nothing fails; all waits, then all goes on.
check hang dmsetup suspend --noflush --nolockfs rf2
sleep 3
equal hang-states iiii "$(member_states)"
check hang-ends dmsetup resume rf2
check hang-load finish_load
equal hang-test 0 "$(detail_test)"
check same-hung same "$ARRAY_DEV" $((120 << 20)) 3 5000192
check stop-hung stop_array
check parity-hung parity_right
check daemon-ends-again stop_daemon
dm_remove
