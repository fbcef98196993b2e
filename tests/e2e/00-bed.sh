#!/usr/bin/env bash
# The bed has what the other scripts take for granted: ublk, MD with RAID 0, 5 and 6, eight NVMe nodes, file systems.
# bed: both
# time: 120
. "$(dirname "$0")/lib.sh"

check root test "$(id -u)" = 0
check ublk-control test -c /dev/ublk-control
for level in raid0 raid5 raid6; do check "md-$level" grep -q "\[$level\]" /proc/mdstat; done
check members members 8
for member in "${MEMBERS[@]}"; do test -b "$member" || not_ok "node-$member"; done
equal distinct-members 8 "$(printf '%s\n' "${MEMBERS[@]}" | sort -u | wc -l)"
# Bytes written to a member are read back, and only from that member.
check write-member dd if=/etc/passwd of="${MEMBERS[3]}" bs=512 count=1 conv=fsync
check read-member bash -c "cmp -n 512 /etc/passwd ${MEMBERS[3]}"
refused other-member 1 'differ|EOF' cmp -n 512 /etc/passwd "${MEMBERS[4]}"
for fs in xfs ext4; do check "filesystem-$fs" bash -c "grep -qw $fs /proc/filesystems || modprobe $fs"; done
# md itself works on these members: what later scripts blame on raidd is then raidd's.
if need md mdadm; then
  check md-create mdadm --create /dev/md127 --run --assume-clean --metadata=1.2 --level=6 --raid-devices=8 --bitmap=none "${MEMBERS[@]}"
  check md-stop md_stop
  check md-assemble md_assemble --readonly "${MEMBERS[@]}"
  check md-stop-again md_stop
fi
