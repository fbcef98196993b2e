# What the scripts 5x share, besides lib.sh and faults.sh: a daemon that is killed, load that checks itself meanwhile.
# shellcheck shell=bash

# A script that fails half-way must not hang in its clean-up on a device that waits for a server for ever.
give_up() {
  local code=$?
  [ $FAILED -eq 0 ] || timeout 30 raidctl stop --abandon "$ARRAY_DEV" > /dev/null 2>&1
  (exit $code)
  cleanup
}
trap give_up EXIT

# kill_daemon: as the OOM killer does it; returns when it is gone.
kill_daemon() { kill -KILL "$DAEMON"; wait "$DAEMON" 2> /dev/null; DAEMON=; }

# succeed_daemon [ARGUMENT...]: a new one, which serves once it has taken over what there is.
succeed_daemon() { begin_successor "$@"; await_successor; }
begin_successor() { raidd --socket "$RAIDD_SOCKET" "$@" >> "$LOG" 2>&1 & DAEMON=$!; }
await_successor() {
  local i
  for i in {1..1200}; do
    [ -S "$RAIDD_SOCKET" ] && raidctl list > /dev/null 2>&1 && return 0
    kill -0 "$DAEMON" 2> /dev/null || break
    sleep 0.05
  done
  say "no successor; its log:"; tail -n 25 "$LOG" | sed 's/^/#   /'
  return 1
}

# verify_load DIR: writes files in DIR and verifies them, again and again until finish_verify, in the background.
verify_load() {
  local dir=$1
  rm -f "$WORK/verify.stop" "$WORK/busy.failed"
  (
    while [ ! -e "$WORK/verify.stop" ]; do
      fio --name=verify --directory="$dir" --verify_state_save=0 --direct=1 --ioengine=libaio --iodepth=8 --numjobs=3 --size=16M \
        --rw=randwrite --bsrange=4k-256k --verify=crc32c --verify_fatal=1 --serialize_overlap=1 --fsync=64 --randrepeat=0 \
        --group_reporting > "$WORK/verify.out" 2>&1 || exit 1
      grep -qE 'err= *[1-9]' "$WORK/verify.out" && exit 1
      echo pass >> "$WORK/verify.passes"
    done
  ) &
  LOAD=$!
  # And one that only writes, so that no kill finds the members idle.
  while [ ! -e "$WORK/verify.stop" ]; do
    fio --name=busy --directory="$dir" --direct=1 --ioengine=libaio --iodepth=16 --size=32M --rw=randwrite --bsrange=4k-64k \
      --time_based --runtime=2 > "$WORK/busy.out" 2>&1 || { touch "$WORK/busy.failed"; break; }
  done &
  BUSY=$!
}
finish_verify() {
  touch "$WORK/verify.stop"
  wait "$BUSY"
  [ ! -e "$WORK/busy.failed" ] || { tail -n 20 "$WORK/busy.out"; return 1; }
  wait "$LOAD" || { tail -n 20 "$WORK/verify.out"; return 1; }
}

# under_kills TAG N: N kills under verify_load on $WORK/mnt. What raidd logs meanwhile goes to since.log as well.
under_kills() {
  local tag=$1 n=$2 i lines took=0
  lines=$(wc -l < "$LOG")
  : > "$WORK/verify.passes"
  verify_load "$WORK/mnt"
  for ((i = 1; i <= n; i++)); do
    sleep "0.$((RANDOM % 9 + 1))"
    kill -0 "$LOAD" 2> /dev/null || { not_ok "load-$tag-$i" "fio ended"; break; }
    kill_daemon
    succeed_daemon || { not_ok "successor-$tag-$i"; break; }
  done
  tail -n +$((lines + 1)) "$LOG" > "$WORK/since.log"
  took=$(grep -c 'goes on in place of a raidd' "$WORK/since.log")
  equal "taken-over-$tag" "$n" "$took"
  say "$tag: $n kills, $(wc -l < "$WORK/verify.passes") passes of fio, writes repeated: $(grep -oE 'writes=[0-9]+' "$WORK/since.log" | cut -d= -f2 | paste -sd' ')"
}

make_fs() { if [ "$1" = xfs ]; then mkfs.xfs -qf "$2"; else mkfs.ext4 -qF "$2"; fi; }
check_fs() { if [ "$1" = xfs ]; then xfs_repair -n "$2"; else e2fsck -fn "$2"; fi; }
