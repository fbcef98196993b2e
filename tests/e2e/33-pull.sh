#!/usr/bin/env bash
# What vanishes under load: an NVMe drive is pulled (the array goes on), raidd is killed (the next one cleans up, takes
# the members, puts parity right, has all flushed data), and SIGTERM comes while a file system is mounted.
# bed: uml
# time: 240
# mem: 6G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need pull fio mdadm || exit 0
dead() { ! alive; }
# pull NODE: its controller goes away, and with it the node.
pull() { echo 1 > "/sys/block/$(basename "$1")/device/delete_controller" 2> /dev/null || echo 1 > "/sys/class/nvme/$(basename "$1" | sed 's/n[0-9]*$//')/delete_controller"; }
# backing N: NVMe namespaces over small loop devices, so that sums and resyncs are short. A scan would see each member
# twice, below as well, so that members are named here.
backing() { loop_members "$1" 96M && BACK=("${MEMBERS[@]}") && nvme_loop "${BACK[@]}"; }
# nodes: the NVMe nodes there are now, in the order of what is below.
nodes() {
  local dev n subsystem
  for dev in "${BACK[@]}"; do
    for n in /sys/class/nvme/nvme*; do
      subsystem=$(cat "$n/subsysnqn" 2> /dev/null) || continue
      [ "$(cat "/sys/kernel/config/nvmet/subsystems/$subsystem/namespaces/1/device_path")" = "$dev" ] && echo "/dev/$(basename "$n")n1"
    done
  done
}

check members backing 5
check daemon start_daemon
all=("${MEMBERS[@]}")

# --- one, then (RAID 6) another drive is pulled ----------------------------------------------------------------------
check create create_array 6 --name pull "${MEMBERS[@]}"
tail=$(($(blockdev --getsize64 "$ARRAY_DEV") - (16 << 20)))
load sound 2 24; check sound-load finish_load
check sound-put put "$ARRAY_DEV" "$tail" 6 5000192
check sound-pullable test -b "${all[3]}"
load pulled 8 24
sleep 2; check pull-one pull "${all[3]}"
check noticed-one states iiifi
sleep 2; check pull-two pull "${all[0]}"
check noticed-two states fiifi
check load finish_load
check alive alive
check nodes-gone test ! -b "${all[3]}" -a ! -b "${all[0]}"
equal test 1 "$(detail_test)"
check old-data same "$ARRAY_DEV" "$tail" 6 5000192
check new-data put "$ARRAY_DEV" $((tail + (8 << 20))) 7 5000192
for slot in 1 2 4; do equal "survivor-$slot" .AA.A "$(array_state "${all[slot]}")"; done
before=$(sum "$ARRAY_DEV")
check stop stop_array
MEMBERS=("${all[1]}" "${all[2]}" "${all[4]}")
equal md-survivors "$before" "$(with_md sum /dev/md127)"
# Plugged in again: known as out of date, not used. The name may be another one.
check plug-three nvme_connect raidd3
check plug-zero nvme_connect raidd0
mapfile -t MEMBERS < <(nodes)
equal five-nodes 5 "${#MEMBERS[@]}"
check assemble raidctl assemble "${MEMBERS[@]}"
equal still-degraded 2 "$(field degraded)"
equal same-bytes "$before" "$(sum "$ARRAY_DEV")"
# A third one is too many: errors, and raidd lives.
check pull-three pull "${MEMBERS[2]}"
refused write-fails 1 'Input/output error' put "$ARRAY_DEV" 0 9 $((1 << 20))
check says-failed says FAILED
check alive-failed alive
equal test-failed 2 "$(detail_test)"
check stop-failed timeout 30 raidctl stop pull

# --- raidd is killed in the middle of writes --------------------------------------------------------------------------
nvme_connect raidd2
mapfile -t MEMBERS < <(nodes)
equal members-back 5 "${#MEMBERS[@]}"
check create-kill create_array 5 --name kill --force "${MEMBERS[@]}"
check resync-kill wait_resync
check put-kill put "$ARRAY_DEV" "$tail" 8 5000192
fio --name=killed --filename="$ARRAY_DEV" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=48k --size=128M --time_based --runtime=20 > "$WORK/fio.out" 2>&1 &
LOAD=$!
sleep 2
check put-flushed put "$ARRAY_DEV" $((tail + (6 << 20))) 9 5000192
check crash crash_daemon
check load-ends soon bash -c "! kill -0 $LOAD 2> /dev/null || [ ! -d /proc/$LOAD ] || grep -q 'State:.Z' /proc/$LOAD/status"
wait "$LOAD" && not_ok load-saw-it "fio saw no error" || ok load-saw-it
check dirty-on-disk bash -c "raidctl examine --output json ${MEMBERS[0]} | grep -q '\"clean\": false'"
check leftover-gone bash -c "! test -e /dev/ublkc0"
check assemble-kill raidctl assemble "${MEMBERS[@]}"
raidctl detail --output json kill | tr -d ' \n' | grep -q '"resync":{' && ok resyncs || { grep -q "parity is in sync array=kill" "$LOG" && ok resyncs || not_ok resyncs "no resync after a kill"; }
check flushed-is-there same "$ARRAY_DEV" "$tail" 8 5000192
check flushed-is-there-too same "$ARRAY_DEV" $((tail + (6 << 20))) 9 5000192
check resync-after-kill wait_resync
check put-after-kill put "$ARRAY_DEV" 0 11 $((8 << 20))
check stop-kill stop_array
check parity-kill parity_right
check md-kill with_md same /dev/md127 $((tail + (6 << 20))) 9 5000192

# --- SIGTERM with a mounted file system under load --------------------------------------------------------------------
check assemble-term raidctl assemble "${MEMBERS[@]}"
check mkfs mkfs.ext4 -qF "$ARRAY_DEV"
mkdir "$WORK/mnt"; check mount mount "$ARRAY_DEV" "$WORK/mnt"
fio --name=mounted --filename="$WORK/mnt/file" --direct=1 --ioengine=libaio --iodepth=8 --rw=randwrite --bs=32k --size=48M --verify=crc32c > "$WORK/fio.out" 2>&1 &
LOAD=$!
sleep 1
kill -TERM "$DAEMON"
check says-why soon grep -q "told to end, but kill .*mounted on $WORK/mnt" "$LOG"
check mounted-load finish_load
check stays alive
umount "$WORK/mnt"
check ends-when-free soon dead
wait "$DAEMON"; equal exit-status 0 $?
DAEMON=
check no-device test ! -e /dev/ublkc0
check clean-on-disk bash -c "raidctl examine --output json ${MEMBERS[*]} | grep -c '\"clean\": true' | grep -qx 5"
check fsck with_md fsck.ext4 -fn /dev/md127
check parity-term parity_right
