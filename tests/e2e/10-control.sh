#!/usr/bin/env bash
# The control plane on real block devices: every bad input is a clear refusal that writes nothing, members are held,
# MD is kept off and taken over politely, two daemons refuse one another.
# bed: any
# time: 120
. "$(dirname "$0")/lib.sh"

# RAIDD_DAEMON names another daemon, such as the example raidd-sim, which moves no data.
if [ -n "${RAIDD_DAEMON:-}" ]; then
  mkdir "$WORK/bin" && ln -s "$(command -v "$RAIDD_DAEMON")" "$WORK/bin/raidd"
  export PATH=$WORK/bin:$PATH
fi
sums() { for dev in "$@"; do head -c 8M "$dev" | sha256sum; tail -c 1M "$dev" | sha256sum; done; }

refused no-daemon 3 'no raidd answers' raidctl list
chmod 755 "$WORK"   # so that another user gets as far as the socket and the programs
refused not-root-daemon 1 'root' setpriv --reuid 65534 --clear-groups "$(command -v raidd)" --socket /tmp/other.sock
check loops loop_members 6 64M
check daemon start_daemon
refused second-daemon 1 'another raidd.*already serves' raidd --socket "$RAIDD_SOCKET"
refused unreadable-config 1 'No such file' raidd --config /no/such.yaml --socket "$WORK/other.sock"
printf 'defaults:\n  chunck: 64K\n' > "$WORK/bad.yaml"
refused bad-config 1 "bad.yaml:2: unknown key 'defaults.chunck'.*did you mean" raidd --config "$WORK/bad.yaml" --socket "$WORK/other.sock"
refused nobody 1 'permission denied' setpriv --reuid 65534 --regid 65534 --clear-groups "$(command -v raidctl)" list
# The socket's mode lets the root group connect; the peer check does not.
refused root-group 1 'only root' setpriv --reuid 65534 --clear-groups "$(command -v raidctl)" list

# --- what create refuses, and that it writes nothing then -------------------------------------------------------
M=("${MEMBERS[@]}")
mkfs.ext4 -qF "${M[4]}"
mkdir "$WORK/mnt" && mount "${M[4]}" "$WORK/mnt"
before=$(sums "${M[@]}")
refused too-few 1 'at least 4 members' raidctl create --level 6 "${M[0]}" "${M[1]}" "${M[2]}"
refused twice 1 'twice' raidctl create --level 5 "${M[0]}" "${M[1]}" "${M[0]}"
ln -s "${M[0]}" "$WORK/link"
refused twice-by-link 1 "same device as ${M[0]}" raidctl create --level 5 "${M[0]}" "${M[1]}" "$WORK/link"
refused mounted 1 "in use: mounted on $WORK/mnt.*umount" raidctl create --level 5 --force "${M[0]}" "${M[1]}" "${M[4]}"
umount "$WORK/mnt"
before=$(sums "${M[@]}")
refused filesystem 1 'ext4 \(file system\).*--force' raidctl create --level 5 "${M[0]}" "${M[1]}" "${M[4]}"
mkswap "${M[5]}" > /dev/null 2>&1 && swapon "${M[5]}" && {
  refused swap 1 'in use as swap.*swapoff' raidctl create --level 5 --force "${M[0]}" "${M[1]}" "${M[5]}"
  swapoff "${M[5]}"
}
before=$(sums "${M[@]}")
truncate -s 64M "$WORK/image"
refused regular-file 1 'losetup' raidctl create --level 5 "${M[0]}" "${M[1]}" "$WORK/image"
refused unknown-name 1 'no such device' raidctl create --level 5 "${M[0]}" "${M[1]}" /dev/nope
refused not-block 1 'not a block device' raidctl create --level 5 "${M[0]}" "${M[1]}" /dev/null
if odd=$(losetup --show -f --sector-size 4096 "$WORK/image" 2> /dev/null); then
  LOOPS+=("$odd")
  refused unequal-sectors 1 "differ in logical block size.*2 of 512 bytes, 1 of 4096" raidctl create --level 5 "${M[0]}" "${M[1]}" "$odd"
  losetup -d "$odd"
else skip unequal-sectors 'no 4096-byte loop devices here'; fi
ro=$(losetup --show -rf "$WORK/image") && {
  refused read-only 1 'write protected' raidctl create --level 5 "${M[0]}" "${M[1]}" "$ro"
  losetup -d "$ro"
}
if dmsetup create raidd-held --table "0 2048 linear ${M[3]} 0" 2> /dev/null; then
  refused held 1 'held by the device-mapper device raidd-held.*dmsetup remove' raidctl create --level 5 "${M[0]}" "${M[1]}" "${M[3]}"
  dmsetup remove raidd-held
else skip held 'no device-mapper here'; fi
# A partition table of two partitions of 16 MiB, from sectors 2048 and 34816 on.
{
  printf '\0\0\0\0\x83\0\0\0\0\x08\0\0\0\x80\0\0'
  printf '\0\0\0\0\x83\0\0\0\0\x88\0\0\0\x80\0\0'
} | dd of="${M[3]}" bs=1 seek=446 conv=notrunc status=none
printf '\x55\xaa' | dd of="${M[3]}" bs=1 seek=510 conv=notrunc,fsync status=none
before=$(sums "${M[@]}")
refused partition-table 1 'MBR partition table.*--force' raidctl create --level 5 "${M[0]}" "${M[1]}" "${M[3]}"
losetup -d "${M[3]}"; parted=$(losetup --show -Pf "${RAIDD_MEMBER_DIR:-$WORK/members}/3.$$"); LOOPS+=("$parted")
M[3]=$parted MEMBERS[3]=$parted
if [ -b "${parted}p1" ]; then
  refused disk-and-partition 1 "partition of $parted" raidctl create --level 5 --force "${M[0]}" "$parted" "${parted}p1"
  refused partitions-of-one-disk 1 'these are partitions of one disk, loop' raidctl create --level 0 "${parted}p1" "${parted}p2"
  mkfs.ext4 -qF "${parted}p2" && mount "${parted}p2" "$WORK/mnt"
  refused partition-mounted 1 'its partition .*p2 is mounted' raidctl create --level 5 --force "${M[0]}" "${M[1]}" "$parted"
  umount "$WORK/mnt"
else skip partitions "no partitions on loop devices here"; fi
before=$(sums "${M[@]}")
refused range 2 'runs backwards' raidctl create --level 5 '/dev/loop<2..0>'
refused level 2 'not supported yet' raidctl create --level 10 "${M[0]}" "${M[1]}" "${M[2]}"
if need ask script; then
  # On a terminal create shows the plan and asks; anything but yes is no.
  refused ask 1 'Create this array\?.*not created' bash -c "printf 'n\n' | script -qec 'raidctl create --level 5 ${M[0]} ${M[1]} ${M[2]}' /dev/null"
fi
check dry-run raidctl create --level 5 --dry-run "${M[0]}" "${M[1]}" "${M[2]}"
equal nothing-was-written "$before" "$(sums "${M[@]}")"

# --- an array of our own ------------------------------------------------------------------------------------------
out=$(raidctl create --output json --level 5 --name ctl --force "${M[0]}" "${M[1]}" "${M[2]}" "${M[4]}") || { not_ok create "$out"; exit; }
ok create
equal only-our-signature linux_raid_member "$(wipefs -n -O TYPE --noheadings "${M[4]}" | sort -u | xargs)"
uuid=$(json uuid <<< "$out") ARRAY_DEV=$(json device <<< "$out")
equal blkid linux_raid_member "$(blkid -p -o value -s TYPE "${M[4]}")"
equal blkid-uuid "$uuid" "$(mdadm --examine "${M[4]}" | awk '/Array UUID/ { print $4 }')"
refused member-held 1 'in use: a member of the running array ctl.*raidctl stop ctl' raidctl create --level 5 --force "${M[3]}" "${M[5]}" "${M[0]}"
refused zero-held 1 'in use: held by raidd.*raidctl stop' raidctl zero --force "${M[0]}"
refused md-cannot 2 'busy' mdadm --assemble --run /dev/md127 "${M[0]}" "${M[1]}" "${M[2]}" "${M[4]}"
refused name-taken 1 'of this name runs already' raidctl create --level 0 --name ctl --force "${M[3]}" "${M[5]}"
check scan-unchanged bash -c "raidctl assemble --scan --output json | grep -q '\"outcome\": \"unchanged\"'"
check examine raidctl examine "${M[0]}" "${M[1]}" "${M[2]}" "${M[4]}"
check detail bash -c "raidctl detail ctl | grep -q 'left-symmetric'"
check stop raidctl stop ctl

# --- udev and mdadm are kept off, and MD is taken over when it was first --------------------------------------------
if [ -d /etc/mdadm ]; then
  refused incremental-ignored 1 'explicitly ignored' mdadm --incremental "${M[0]}"
fi
check explicit-mdadm md_assemble --readonly "${M[0]}" "${M[1]}" "${M[2]}" "${M[4]}"
exec 7< /dev/md127
refused md-open 1 'md127.*(open in|in use|held)' raidctl assemble --name ctl
exec 7<&-
check take-over bash -c "raidctl assemble --name ctl && ! grep -q md127 /proc/mdstat"
check stop-release raidctl stop --release ctl
if [ -d /etc/mdadm ]; then
  check incremental-again bash -c "mdadm --incremental ${M[0]} && grep -q inactive /proc/mdstat"
  check take-over-inactive bash -c "raidctl assemble --name ctl && ! grep -q inactive /proc/mdstat"
  check stop-again raidctl stop ctl
fi

# --- formats that are recognised and refused ------------------------------------------------------------------------
if mdadm --create /dev/md126 --run --assume-clean --metadata=1.2 --level=5 -n 3 --consistency-policy=ppl "${M[0]}" "${M[1]}" "${M[3]}" > /dev/null 2>&1; then
  md_stop /dev/md126
  refused ppl 1 'consistency-policy=resync' raidctl assemble "${M[0]}" "${M[1]}" "${M[3]}"
  refused ppl-examine 1 'consistency-policy=resync' raidctl examine "${M[0]}"
  refused zero-not-ours 1 'not one of ours' raidctl zero "${M[0]}" "${M[1]}" "${M[3]}"
  check zero-force raidctl zero --force "${M[0]}" "${M[1]}" "${M[3]}"
fi
if mdadm --create /dev/md126 --run --assume-clean --metadata=0.90 --level=5 -n 3 "${M[0]}" "${M[1]}" "${M[3]}" > /dev/null 2>&1; then
  md_stop /dev/md126
  refused old-format 1 'Linux MD 0.90.*update=metadata' raidctl assemble "${M[0]}" "${M[1]}" "${M[3]}"
  refused old-format-examine 1 'Linux MD 0.90' raidctl examine "${M[0]}"
fi
dd if=/dev/urandom of="${M[5]}" bs=1M count=2 conv=fsync status=none
refused garbage-examine 1 'no MD superblock|carries' raidctl examine "${M[5]}"
truncate -s 5000 "$WORK/short"
refused short-examine 1 'no MD superblock' raidctl examine "$WORK/short"
refused nothing-found 1 "named 'nobody'" raidctl assemble --name nobody

# --- members of 4096-byte sectors -----------------------------------------------------------------------------------
big=()
for n in 0 1 2; do
  truncate -s 64M "$WORK/big$n"
  dev=$(losetup --show -f --sector-size 4096 "$WORK/big$n" 2> /dev/null) && big+=("$dev") LOOPS+=("$dev")
done
if [ "${#big[@]}" -eq 3 ]; then
  check create-4k raidctl create --level 5 --name big "${big[@]}"
  check examine-4k bash -c "mdadm --examine ${big[2]} | grep -q 'Array Size'"
  equal logical-block 4096 "$(raidctl detail --output json big | json logical_block)"
  check stop-4k raidctl stop big
  check zero-4k raidctl zero "${big[@]}"
  refused zeroed-4k 1 'No md superblock' mdadm --examine "${big[2]}"
else skip create-4k 'no 4096-byte loop devices here'; fi

# --- no ublk ----------------------------------------------------------------------------------------------------
if [ -z "${RAIDD_DAEMON:-}" ] && mv /dev/ublk-control /dev/ublk-control.away; then
  before=$(sums "${big[@]}")
  refused no-ublk 1 'modprobe ublk_drv' raidctl create --level 5 "${big[@]}"
  equal no-ublk-writes-nothing "$before" "$(sums "${big[@]}")"
  mv /dev/ublk-control.away /dev/ublk-control
fi

# --- the end ----------------------------------------------------------------------------------------------------
check stop-daemon stop_daemon
check socket-gone test ! -e "$RAIDD_SOCKET"
