#!/usr/bin/env bash
# The daemon's life around a used array: it stays while the array is mounted, ends once it is free; a killed daemon's
# members can be had by the next one, two daemons never share a member, and mdadm is refused meanwhile.
# bed: uml
# time: 120
. "$(dirname "$0")/lib.sh"

alive() { kill -0 "$DAEMON" 2> /dev/null; }
dead() { ! alive; }
# soon COMMAND...: within five seconds.
soon() { for _ in {1..50}; do "$@" && return 0; sleep 0.1; done; return 1; }

check members members 4
check daemon start_daemon
check create create_array 5 --name life "${MEMBERS[@]}"
equal device /dev/ublkb0 "$ARRAY_DEV"
check mkfs mkfs.ext4 -qF "$ARRAY_DEV"
mkdir "$WORK/mnt" && check mount mount "$ARRAY_DEV" "$WORK/mnt"
cp -r "$E2E" "$WORK/mnt/"
refused stop-mounted 1 "life.*mounted on $WORK/mnt.*umount" raidctl stop life
refused stop-mounted-by-device 1 'mounted on' raidctl stop "$ARRAY_DEV"

# SIGTERM while mounted: says who, stays, serves.
kill -TERM "$DAEMON"
check says-who soon grep -q "told to end, but life .*mounted on $WORK/mnt" "$LOG"
check stays alive
check resync wait_resync life
check still-serves bash -c "sync && ls $WORK/mnt/e2e/lib.sh && raidctl detail life"
umount "$WORK/mnt"
check ends-when-free soon dead
wait "$DAEMON"; equal exit-status 0 $?
check left-clean bash -c "mdadm --examine ${MEMBERS[0]} | grep -q 'State : clean'"

# A second daemon on another socket cannot have a member of the first.
check daemon-again start_daemon
check assemble raidctl assemble --scan
check same-device test -b "$ARRAY_DEV"
first=$DAEMON
raidd --socket "$WORK/second.sock" 2> "$WORK/second.log" & second=$!
check second-up raidctl --socket "$WORK/second.sock" list --wait-daemon 5
refused second-assemble 1 'another raidd serves it' raidctl --socket "$WORK/second.sock" assemble --name life
refused second-create 1 'held by raidd' raidctl --socket "$WORK/second.sock" create --level 5 --force "${MEMBERS[@]}"
kill -TERM $second; wait $second; equal second-exit 0 $?
check first-untouched bash -c "raidctl detail life --test > /dev/null"

# A killed daemon: the next one goes on with its array and its device.
check remount mount "$ARRAY_DEV" "$WORK/mnt"
echo more > "$WORK/mnt/more"; umount "$WORK/mnt"
kill -KILL "$first"; wait "$first" 2> /dev/null
check stale-socket test -S "$RAIDD_SOCKET"
refused nobody-answers 3 'no raidd answers' raidctl list
check daemon-after-kill start_daemon
check taken-over grep -q '/dev/ublkb0 goes on in place of a raidd that died' "$LOG"
check assemble-after-kill raidctl assemble --scan
check mount-after-kill mount "$ARRAY_DEV" "$WORK/mnt"
equal data-after-kill more "$(cat "$WORK/mnt/more")"
check tree-after-kill diff -r "$E2E" "$WORK/mnt/e2e"
umount "$WORK/mnt"
check resync-after-kill wait_resync life

# What it left is gone, as after a power cut in the eyes of the next one: the device waits until it is given up, and parity is
# not trusted.
echo dirty | dd of="$ARRAY_DEV" bs=512 seek=100 conv=sync,fsync status=none
kill -KILL "$DAEMON"; wait "$DAEMON" 2> /dev/null
rm -rf "$WORK/arrays"
check daemon-after-loss start_daemon
check says-remedy grep -q "raidctl stop --abandon /dev/ublkb0" "$LOG"
check still-there test -b /dev/ublkb0
refused abandon-unknown 1 'nothing that a dead raidd has left' raidctl stop --abandon /dev/ublkb7
check abandon raidctl stop --abandon /dev/ublkb0
check gone soon test ! -e /dev/ublkb0
refused abandon-twice 1 'nothing that a dead raidd has left' raidctl stop --abandon /dev/ublkb0
check assemble-after-loss raidctl assemble --scan
check stop raidctl stop life
check daemon-ends stop_daemon
