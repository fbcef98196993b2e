#!/usr/bin/env bash
# No write of a dead raidd may land after its successor has begun, and nobody takes an array from a raidd that lives: members that
# take seconds for a write, a second daemon, one that is stopped by a signal, one that left nothing behind.
# bed: uml
# time: 90
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"
. "$(dirname "$0")/takeover.sh"

need late fio dmsetup mdadm || exit 0
MIB=64
check members members 4
check wrap dm_wrap $MIB "${MEMBERS[@]}"
check daemon start_daemon
check create create_array 5 --name late --force "${MEMBERS[@]}"
check resync wait_resync late
check put put "$ARRAY_DEV" 0 3 $((8 << 20))
# Every write waits 3 s in the block layer, where no signal reaches it; reads do not. Some are always under way.
fio --name=busy --filename="$ARRAY_DEV" --direct=1 --ioengine=libaio --iodepth=16 --offset=32M --size=48M --rw=randwrite --bsrange=4k-64k \
  --time_based --runtime=20 > "$WORK/fio.out" 2>&1 & LOAD=$!
sleep 1
for n in 0 1 2 3; do check "slow-$n" dm_table $n "0 ${SECTORS[n]} delay ${UNDER[n]} 0 0 ${UNDER[n]} 0 3000"; done
put "$ARRAY_DEV" $((16 << 20)) 4 $((1 << 20)) & writer=$!
sleep 4
kill -KILL "$DAEMON"; old=$DAEMON
while [ -e "$RAIDD_SOCKET" ] && kill -0 "$old" 2> /dev/null && ! grep -qs 'State:.Z' "/proc/$old/status"; do sleep 0.01; done
begin_successor
sleep 2
# From here on without the delay; this ends what is under way first.
for n in 0 1 2 3; do check "fast-$n" dm_heal $n; done
check successor await_successor
say "$(grep 'wrote again' "$LOG" | tail -n 1 | grep -oE 'writes=[0-9]+')"
check load finish_load
check writer wait $writer
check written same "$ARRAY_DEV" $((16 << 20)) 4 $((1 << 20))
check old same "$ARRAY_DEV" 0 3 $((8 << 20))

# --- one raidd for an array -----------------------------------------------------------------------------------------
refused second 1 "another raidd.* already serves" raidd --socket "$RAIDD_SOCKET"
# Stopped by a signal it serves nothing, and is not dead: nobody may write to its members.
kill -STOP "$DAEMON"
refused second-while-stopped 1 "another raidd.* already serves" raidd --socket "$RAIDD_SOCKET"
mkdir "$WORK/other"
raidd --socket "$WORK/other/raidd.sock" 2> "$WORK/other.log" & other=$!
check other-up raidctl --socket "$WORK/other/raidd.sock" list --wait-daemon 5
refused other-assemble 1 'in use|held by' raidctl --socket "$WORK/other/raidd.sock" assemble "${MEMBERS[@]}"
refused other-abandon 1 'nothing that a dead raidd has left' raidctl --socket "$WORK/other/raidd.sock" stop --abandon "$ARRAY_DEV"
kill -TERM $other; wait $other; equal other-ends 0 $?
kill -CONT "$DAEMON"
check goes-on put "$ARRAY_DEV" $((24 << 20)) 5 $((1 << 20))

# --- what a dead one left does not fit -------------------------------------------------------------------------------
# Somebody has had the members meanwhile: nothing may be written to them from the journal.
kill_daemon
check md-took-them md_assemble "${MEMBERS[@]}"
check md-wrote bash -c 'dd if=/dev/zero of=/dev/md127 bs=1M count=4 oflag=direct conv=fsync status=none'
check md-stop md_stop
check third succeed_daemon
check says-why grep -qE 'late: not taken over: somebody has written to the members.*--abandon' "$LOG"
equal not-running '' "$(raidctl list --output json | json name)"
check still-waits test -b "$ARRAY_DEV"
refused assemble-refused 1 'somebody has written' raidctl assemble --scan
check abandon raidctl stop --abandon late
check gone soon test ! -e "$ARRAY_DEV"
check assemble raidctl assemble --scan
check same-as-md same "$ARRAY_DEV" $((16 << 20)) 4 $((1 << 20))
check resync-again wait_resync late
check stop stop_array late
check parity parity_right
check daemon-ends stop_daemon
dm_remove
