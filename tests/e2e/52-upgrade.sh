#!/usr/bin/env bash
# A new program takes over from the old one under load, on SIGHUP: same process, same devices, no error; a program that does
# not run changes nothing.
# bed: uml
# time: 90
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"
. "$(dirname "$0")/takeover.sh"

need upgrade fio mkfs.ext4 mdadm || exit 0
mkdir "$WORK/bin"; cp "$RAIDD_BIN_DIR/raidd" "$WORK/bin/raidd"
export PATH=$WORK/bin:$PATH
check members members 4
check daemon start_daemon
check create create_array 5 --name up --force "${MEMBERS[@]}"
check mkfs mkfs.ext4 -qF "$ARRAY_DEV"
mkdir "$WORK/mnt"; check mount mount "$ARRAY_DEV" "$WORK/mnt"
: > "$WORK/verify.passes"
verify_load "$WORK/mnt"
times() { [ "$(grep -c 'goes on in place of a raidd' "$LOG")" -ge "$1" ]; }
for n in 1 2 3; do
  sleep 1
  # As a package manager does it: another file of the same name.
  cp "$RAIDD_BIN_DIR/raidd" "$WORK/bin/new" && mv "$WORK/bin/new" "$WORK/bin/raidd"
  kill -HUP "$DAEMON"
  check "taken-over-$n" soon times $n
  check "answers-$n" raidctl detail up --wait-daemon 10
  check "same-process-$n" kill -0 "$DAEMON"
done
# One that cannot run.
echo broken > "$WORK/bin/new"; chmod +x "$WORK/bin/new"; mv "$WORK/bin/new" "$WORK/bin/raidd"
kill -HUP "$DAEMON"
check says-why soon grep -q 'no hand-over' "$LOG"
check still-serves raidctl detail up
check load finish_verify
check umount umount "$WORK/mnt"
check fsck e2fsck -fn "$ARRAY_DEV"
check resync wait_resync up
check stop stop_array up
check parity parity_right
check daemon-ends stop_daemon
