#!/bin/bash
# Makes the fixtures of this folder from real arrays: mdadm, the kernel's md, 16 RAM disks (/dev/ram0..15, 1 GiB each)
# and loop devices over sparse files. Run as root on a machine that has nothing to lose (a VM), in this folder.
# NAME.bin: of each member the 4 KiB of its superblock and the first 4 KiB of its bitmap. NAME.txt: what mdadm -X says
# of each. NAME.writes: what was written to the array before: first sector and sectors, one write a line.
# chunks.txt: which bitmap chunk sizes (KiB) mdadm took, by the size in use on a member (sectors).
set -u
export MDADM_NO_UDEV=1
exec 2>make.log
set -x
rams() { local i; for ((i = $1; i <= $2; i++)); do echo /dev/ram$i; done; }
create() { mdadm --create /dev/md0 --run --force --homehost=golden --metadata=1.2 --chunk=64 --bitmap=internal "$@" >/dev/null; }
end() {
    mdadm --stop /dev/md0
    for i in {0..8}; do dd if=/dev/zero of=/dev/ram$i bs=1M count=16 oflag=direct status=none; done
}
again() { mdadm --stop /dev/md0; mdadm --assemble /dev/md0 "$@" >/dev/null; } # a stop cleans the bitmap
save() { # NAME DEVICE...
    local name=$1 d; shift
    : >"$name.bin"; : >"$name.txt"
    for d; do
        dd if="$d" bs=4k skip=1 count=2 iflag=direct status=none >>"$name.bin"
        mdadm -X "$d" >>"$name.txt"
    done
}
write() { # NAME FIRST SECTORS: to the array, in one piece
    dd if=/dev/urandom of=/dev/md0 bs=$(($3 * 512)) count=1 seek=$(($2 * 512)) oflag=direct,seek_bytes iflag=fullblock status=none
    echo "$2 $3" >>"$1.writes"
}
rm -f ./*.writes

create --level=5 --raid-devices=3 --size=256M --bitmap-chunk=64K --assume-clean --readonly --name=r5 $(rams 0 2); mdadm --stop /dev/md0
save raid5-3-fresh $(rams 0 2); end

create --level=5 --raid-devices=3 --size=256M --bitmap-chunk=64K --assume-clean --name=r5 $(rams 0 2); mdadm --stop /dev/md0
save raid5-3-clean $(rams 0 2); end

# Parity unknown everywhere: all bits are set, those beyond the last chunk too.
create --level=6 --raid-devices=4 --size=100M --bitmap-chunk=1M --readonly --name=un $(rams 0 3); mdadm --stop /dev/md0
save raid6-4-unsynced $(rams 0 3); end

# Read below a running array, right after the writes: what a power cut would leave.
create --level=5 --raid-devices=3 --size=256M --bitmap-chunk=64K --delay=60 --assume-clean --name=r5 $(rams 0 2)
again $(rams 0 2)
for w in "0 8" "1000 8" "256 128" "131072 24" "1048448 128" "655400 16"; do write raid5-3-dirty $w; done
save raid5-3-dirty $(rams 0 2); end

create --level=6 --raid-devices=5 --size=96M --bitmap-chunk=4K --delay=60 --assume-clean --name=r6 $(rams 0 4)
again $(rams 0 4)
for w in "0 8" "4000 8" "20160 96" "589696 128" "300000 8"; do write raid6-5-4k-dirty $w; done
save raid6-5-4k-dirty $(rams 0 4); end

create --level=6 --raid-devices=4 --delay=60 --assume-clean --name=r6 $(rams 0 3)
again $(rams 0 3)
for w in "8 8" "700000 8" "3000000 1024"; do write raid6-4-default-dirty $w; done
save raid6-4-default-dirty $(rams 0 3); end

# A member fails, then writes: it keeps its old bitmap, the others theirs until it is back.
create --level=6 --raid-devices=5 --size=256M --bitmap-chunk=256K --delay=60 --assume-clean --name=deg $(rams 0 4)
again $(rams 0 4)
mdadm /dev/md0 --fail /dev/ram2
for w in "4096 8" "900000 512"; do write raid6-5-degraded $w; done
sleep 1; mdadm --stop /dev/md0
save raid6-5-degraded $(rams 0 4); end

mkdir -p /tmp/big; mount -t tmpfs none /tmp/big
sizes="200M 5G 9G 40G 199G 201G 1T 3T 8T 61T 130T"
for s in $sizes; do
    devices=()
    for i in 0 1 2 3; do
        truncate -s $s /tmp/big/$i; devices+=("$(losetup --show -f /tmp/big/$i)")
    done
    create --level=6 --raid-devices=4 --assume-clean --name=big "${devices[@]}"; mdadm --stop /dev/md0
    save big-$s "${devices[@]:0:1}"
    losetup -D; rm -f /tmp/big/?
done
: >chunks.txt
for s in 100M 512M 9G 201G 1T; do
    devices=()
    for i in 0 1 2; do
        truncate -s $s /tmp/big/$i; devices+=("$(losetup --show -f /tmp/big/$i)")
    done
    mdadm --create /dev/md0 --run --force --metadata=1.2 --chunk=64 --bitmap=none --level=5 --raid-devices=3 --assume-clean "${devices[@]}" >/dev/null
    mdadm --stop /dev/md0
    size=$(od -An -t u8 -j 4176 -N 8 ${devices[0]} | tr -d ' ')
    for c in 4 8 16 32 64 128 256 512 1024 2048 4096 65536 262144 1048576; do
        for d in "${devices[@]}"; do dd if=/dev/zero of=$d bs=1M count=1 oflag=direct status=none; done
        if create --level=5 --raid-devices=3 --bitmap-chunk=${c}K --assume-clean --name=c "${devices[@]}"; then word=taken; else word=refused; fi
        echo "$size $c $word" >>chunks.txt
        mdadm --stop /dev/md0
    done
    losetup -D; rm -f /tmp/big/?
done
umount /tmp/big
