#!/bin/bash
# Makes the fixtures of this folder from real arrays: mdadm, the kernel's md, and 16 RAM disks
# (/dev/ram0..15, at least 64 MiB each). Run as root on a machine that has nothing to lose (a VM), in this folder.
# NAME.bin is the 4 KiB superblock of each member in order; NAME.txt is what mdadm --examine says of them.
# layouts.txt is the first word of each chunk of each member, by layout, as md laid it out and computed it.
set -u
export MDADM_NO_UDEV=1
exec 2>make.log
set -x
create() { mdadm --create /dev/md0 --run --force --homehost=golden --metadata="${META:-1.2}" "$@" >/dev/null; }
end() { # [MIB]: forget the array and what its members held
    mdadm --stop /dev/md0
    for i in {0..8}; do dd if=/dev/zero of=/dev/ram$i bs=1M count=${1:-16} oflag=direct status=none; done
}
save() { # NAME BYTE_OFFSET DEVICE...
    local name=$1 at=$2 d; shift 2
    : >"$name.bin"; : >"$name.txt"
    for d; do
        dd if="$d" bs=512 skip=$((at / 512)) count=8 iflag=direct status=none >>"$name.bin"
        mdadm --examine "$d" >>"$name.txt"
    done
}
rams() { local i; for ((i = $1; i <= $2; i++)); do echo /dev/ram$i; done; }
part() { # NAME RAM FIRST_SECTOR SECTORS: a device that is a part of a RAM disk
    dmsetup create "$1" --table "0 $4 linear /dev/ram$2 $3"
    dmsetup mknodes
}
idle() { mdadm --wait /dev/md0; sleep 0.5; }

create --level=0 --raid-devices=2 --chunk=64 --name=r0 $(rams 0 1); mdadm --stop /dev/md0
save raid0-2 4096 $(rams 0 1); end

part a 0 0 40960; part b 1 0 61440; part c 2 0 81920; part d 3 0 81920
ls /dev/mapper
create --level=0 --raid-devices=4 --chunk=12 --name=zones /dev/mapper/[abcd]; mdadm --stop /dev/md0
save raid0-zones 4096 /dev/mapper/[abcd]; end
dmsetup remove_all

create --level=5 --raid-devices=3 --chunk=64 --assume-clean --bitmap=none --name=r5 $(rams 0 2); mdadm --stop /dev/md0
save raid5-3-clean 4096 $(rams 0 2); end

mdadm --create /dev/md0 --run --homehost=golden --level=5 --raid-devices=4 --size=32M --bitmap=none --name=r5spare $(rams 0 3)
idle; mdadm --stop /dev/md0
save raid5-4-rebuilt 4096 $(rams 0 3); end

mdadm --create /dev/md0 --run --homehost=golden --level=5 --raid-devices=4 --size=64M --bitmap=none --name=r5rec $(rams 0 3)
echo frozen >/sys/block/md0/md/sync_action; mdadm --stop /dev/md0
save raid5-4-recovery 4096 $(rams 0 3); end

for n in 4 8; do
    create --level=6 --raid-devices=$n --chunk=64 --assume-clean --bitmap=none --name=r6 $(rams 0 $((n - 1))); mdadm --stop /dev/md0
    save raid6-$n-clean 4096 $(rams 0 $((n - 1))); end
done

create --level=6 --raid-devices=4 --chunk=64 --bitmap=none --name=dirty $(rams 0 3)
echo frozen >/sys/block/md0/md/sync_action; dd if=/dev/zero of=/dev/md0 bs=4k count=1 oflag=direct status=none
save raid6-4-dirty 4096 $(rams 0 3); end

create --level=6 --raid-devices=5 --spare-devices=1 --chunk=128 --layout=left-asymmetric --size=32M --assume-clean --bitmap=none --name=fail $(rams 0 5)
echo frozen >/sys/block/md0/md/sync_action
mdadm /dev/md0 --fail /dev/ram2; dd if=/dev/zero of=/dev/md0 bs=4k count=1 oflag=direct status=none; sleep 1
mdadm --stop /dev/md0
save raid6-5-faulty-spare 4096 $(rams 0 5); end

create --level=5 --raid-devices=3 --chunk=512 --assume-clean --bitmap=internal --name=bitmap $(rams 0 2); mdadm --stop /dev/md0
save raid5-3-bitmap 4096 $(rams 0 2); end

create --level=5 --raid-devices=3 --chunk=64 --assume-clean --consistency-policy=ppl --name=ppl $(rams 0 2); mdadm --stop /dev/md0
save raid5-3-ppl 4096 $(rams 0 2); end

create --level=5 --raid-devices=3 --chunk=64 --assume-clean --write-journal=/dev/ram3 --name=journal $(rams 0 2); mdadm --stop /dev/md0
save raid5-3-journal 4096 $(rams 0 3); end

create --level=5 --raid-devices=3 --chunk=64 --assume-clean --bitmap=none --size=64M --name=reshape $(rams 0 2)
mdadm /dev/md0 --add /dev/ram3; echo 1 >/sys/block/md0/md/sync_speed_max; echo 1 >/sys/block/md0/md/sync_speed_min
mdadm --grow /dev/md0 --raid-devices=4; sleep 1; mdadm --stop /dev/md0
save raid5-reshape 4096 $(rams 0 3); end

create --level=5 --raid-devices=3 --chunk=64 --assume-clean --bitmap=none --size=64M --name=replace $(rams 0 2)
mdadm /dev/md0 --add /dev/ram3; echo 1 >/sys/block/md0/md/sync_speed_max; echo 1 >/sys/block/md0/md/sync_speed_min
mdadm /dev/md0 --replace /dev/ram1; sleep 1; mdadm --stop /dev/md0
save raid5-replacement 4096 $(rams 0 3); end

create --level=4 --raid-devices=3 --chunk=64 --assume-clean --bitmap=none --name=r4 $(rams 0 2); mdadm --stop /dev/md0
save raid4-3 4096 $(rams 0 2); end
create --level=1 --raid-devices=2 --assume-clean --bitmap=none --name=r1 $(rams 0 1); mdadm --stop /dev/md0
save raid1-2 4096 $(rams 0 1); end
create --level=10 --raid-devices=4 --assume-clean --bitmap=none --name=r10 $(rams 0 3); mdadm --stop /dev/md0
save raid10-4 4096 $(rams 0 3); end
create --level=linear --raid-devices=2 --name=lin $(rams 0 1); mdadm --stop /dev/md0
save linear-2 4096 $(rams 0 1); end

sectors=$(blockdev --getsz /dev/ram0)
META=1.0 create --level=5 --raid-devices=3 --chunk=64 --assume-clean --bitmap=none --name=r5v10 $(rams 0 2); mdadm --stop /dev/md0
save raid5-3-v1.0 $((((sectors - 16) & ~7) * 512)) $(rams 0 2); end
META=1.1 create --level=5 --raid-devices=3 --chunk=64 --assume-clean --bitmap=none --name=r5v11 $(rams 0 2); mdadm --stop /dev/md0
save raid5-3-v1.1 0 $(rams 0 2); end

# As mdadm writes them, before the kernel touches them: a stopped assembly never started.
create --level=6 --raid-devices=4 --chunk=64 --assume-clean --bitmap=none --readonly --name=ro $(rams 0 3); mdadm --stop /dev/md0
save raid6-4-fresh 4096 $(rams 0 3); end

[ "${1:-}" = superblocks ] && exit
# What md makes of each layout: every chunk of the array holds one random word, repeated.
python3 - <<'PY' >/tmp/words
import sys
state = 0x12345678
out = bytearray()
for _ in range(4096):
    state = (state * 1103515245 + 12345) & 0xffffffff
    out += (state ^ state >> 13).to_bytes(4, "little") * 1024
sys.stdout.buffer.write(out)
PY
: >layouts.txt
layout() { # LEVEL LAYOUT_NAME MEMBERS DEVICE...
    local level=$1 name=$2 n=$3 d line; shift 3
    local size="--size=256K --assume-clean --bitmap=none"; [ "$level" = 0 ] && size=
    local lay="--layout=$name"; [ "$level" = 4 ] && lay=
    create --level=$level $lay --raid-devices=$n --chunk=4 $size --data-offset=1024K "$@"
    dd if=/tmp/words of=/dev/md0 bs=4k iflag=fullblock count=$(($(blockdev --getsz /dev/md0) / 8)) oflag=direct status=none
    sync; echo "array level=$level layout=$(cat /sys/block/md0/md/layout) members=$n sectors=$(blockdev --getsz /dev/md0) name=$name" >>layouts.txt
    mdadm --stop /dev/md0
    for d; do
        local count=64; [ "$level" = 0 ] && count=$((($(blockdev --getsz "$d") - 2048) / 8))
        dd if="$d" bs=4k skip=256 count=$count iflag=direct status=none | python3 -c '
import sys
b = sys.stdin.buffer.read()
print(" ".join(b[i:i + 4].hex() for i in range(0, len(b), 4096)))' >>layouts.txt
    done
    end 2
}
for n in 2 3 4 7; do
    for l in left-asymmetric right-asymmetric left-symmetric right-symmetric parity-first parity-last; do
        [ $n = 2 ] && [ $l != left-symmetric ] && continue
        layout 5 $l $n $(rams 0 $((n - 1)))
    done
done
layout 4 - 4 $(rams 0 3)
for n in 4 5 8; do
    for l in left-asymmetric right-asymmetric left-symmetric right-symmetric parity-first parity-last \
        ddf-zero-restart ddf-N-restart ddf-N-continue \
        left-asymmetric-6 right-asymmetric-6 left-symmetric-6 right-symmetric-6 parity-first-6; do
        layout 6 $l $n $(rams 0 $((n - 1)))
    done
done
part a 0 0 2304; part b 1 0 2568; part c 2 0 2432; part d 3 0 2688
layout 0 original 4 /dev/mapper/[abcd]
layout 0 alternate 4 /dev/mapper/[abcd]
dmsetup remove_all
wc -l layouts.txt
