#!/usr/bin/env bash
# The memdisk example under tools that know nothing of it: dd, mkfs and fsck, blkdiscard, fio's verification, signals.
#
#   ublk-frontend/tests/bed.sh MEMDISK        # path of the built example; as root, on a machine with a ublk driver
#
# Uses the RAM disks /dev/ram0 to ram3 (64 MiB each) where they exist. Works in a throw-away guest; exit status 0 if
# everything held.
set -u
memdisk=$1 failed=0
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT

check() { # NAME COMMAND...: the command must succeed
  local name=$1; shift
  if "$@" > "$dir/check" 2>&1; then echo "ok    $name"; else echo "FAIL  $name"; tail -5 "$dir/check"; failed=1; fi
}
start() { # OPTION...: sets p (process) and d (device)
  : > "$dir/out"
  "$memdisk" "$@" > "$dir/out" 2> "$dir/err" & p=$!
  for _ in $(seq 400); do
    d=$(grep -m1 '^/dev/' "$dir/out") && return
    kill -0 "$p" 2> /dev/null || break
    sleep 0.05
  done
  echo "FAIL  start $*"; cat "$dir/err"; exit 1
}
said() { for _ in $(seq 100); do [ "$(tail -1 "$dir/out")" = "$1" ] && return; sleep 0.05; done; return 1; }
stop() { # a new device may be open for a moment for its partition scan
  for _ in $(seq 50); do kill -TERM "$p"; sleep 0.1; kill -0 "$p" 2> /dev/null || break; done
  wait "$p"
}
copy() { dd if="$dir/data" of="$d" bs=1M oflag=direct && dd if="$d" of="$dir/back" bs=1M count=32 iflag=direct && cmp "$dir/data" "$dir/back"; }
zeroes() { dd if="$d" of="$dir/part" bs=1M skip="$1" count="$2" iflag=direct && cmp -n $(($2 << 20)) "$dir/part" /dev/zero; }
verify() {
  fio --name=v --filename="$d" --direct=1 --ioengine=io_uring --rw=randwrite --bsrange=512-256k --iodepth=16 --size=32M \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --serialize_overlap=1 --iomem_align="${1:-4096}"
}
no_device() { ! ls /dev/ublkb* /dev/ublkc* 2> /dev/null; }

dd if=/dev/urandom of="$dir/data" bs=1M count=32 status=none
echo "== in memory"
start --size-mib 64 --queues 2
check "copy in and out" copy
check "discard" blkdiscard -o 1M -l 1M "$d"
check "discarded range reads zero" zeroes 1 1
check "write zeroes" blkdiscard -z -o 4M -l 3M "$d"
check "zeroed range reads zero" zeroes 4 3
check "fio verify" verify
check "fio verify, memory aligned to 512" verify 512
check "mkfs" mkfs.ext4 -q "$d"
mkdir "$dir/mnt"
check "mount" mount "$d" "$dir/mnt"
check "copy a file" cp "$dir/data" "$dir/mnt/data"
kill -TERM "$p"; check "a mounted device is not stopped" said busy
check "unmount" umount "$dir/mnt"
check "fsck" fsck.ext4 -fn "$d"
exec 9< "$d"; echo > "$dir/out"; kill -TERM "$p"; check "an open device is not stopped" said busy; exec 9<&-
check "stop" stop
check "no device is left" no_device

variants=("--entries 4 --queues 2" "--no-defer" "--zero-copy" "--max-request 33554432 --depth 8")
if [ -b /dev/ram3 ]; then
  for n in 0 1 2 3; do dd if=/dev/zero of=/dev/ram$n bs=1M count=64 status=none; done
  stripe="--back /dev/ram0 --back /dev/ram1 --back /dev/ram2 --back /dev/ram3"
  for more in "" "--zero-copy" "--zero-copy --chunk 4096 --mixed" "--zero-copy --small-table" \
    "--zero-copy --recovery --queues 2 --entries 4"; do variants+=("$stripe $more"); done
else
  echo "SKIPPED 5 variants over RAM disks: there are none"
fi
for v in "${variants[@]}"; do
  echo "== $v"
  start --size-mib 64 $v
  check "copy in and out" copy
  check "fio verify" verify
  check "stop" stop
done

for recovery in "" --recovery; do
  echo "== kill -9 $recovery"
  start --size-mib 64 $recovery
  dd if=/dev/zero of="$d" bs=1M oflag=direct > /dev/null 2>&1 & writer=$!
  sleep 0.1; kill -KILL "$p"; wait "$p" 2> /dev/null
  start --size-mib 64
  wait "$writer"
  check "the dead server's device was removed" grep -q '^removed' "$dir/err"
  check "copy in and out" copy
  check "stop" stop
done
echo "== cycles"
check "50 times start and stop" "$memdisk" --size-mib 64 --queues 2 --cycles 50
first=$(sed -n 's/^cycle 5: .* \([0-9]*\) open files/\1/p' "$dir/check") last=$(sed -n 's/^cycle 49: .* \([0-9]*\) open files/\1/p' "$dir/check")
check "open files do not grow ($first, $last)" test "$last" -le "$((first + 1))"
check "no device is left" no_device
exit $failed
