#!/usr/bin/env bash
# XFS and ext4 on arrays of each level: made, filled with a tree, clean by their own checkers, seen by blkid and lsblk, and
# the same files read through md afterwards.
# bed: uml
# time: 240
# mem: 8G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/interop.sh"

need filesystems mkfs.xfs mkfs.ext4 xfs_repair fsck.ext4 blkid lsblk mdadm || exit 0
check daemon start_daemon
check loops loop_members 6 128M
check nvme nvme_loop "${MEMBERS[@]}"
mkdir "$WORK/mnt" "$WORK/tree"
# A few thousand files of all sizes, of this machine.
cp -r "$REPO/raidd" "$REPO/tests" "$REPO/docs" "$WORK/tree"
find /usr/share/doc /usr/share/misc -maxdepth 3 -type f 2> /dev/null | head -n 1500 | tar -cf - -T - 2> /dev/null | tar -C "$WORK/tree" -xf -
dd if=/dev/urandom of="$WORK/tree/large" bs=1M count=40 status=none
want=$(tree_sums "$WORK/tree")

made() { # FILE_SYSTEM
  case $1 in xfs) mkfs.xfs -qf "$ARRAY_DEV" ;; ext4) mkfs.ext4 -qF "$ARRAY_DEV" ;; esac
}
filled() {
  mount "$ARRAY_DEV" "$WORK/mnt" && cp -a "$WORK/tree" "$WORK/mnt" || return 1
  # Some of it is deleted and written again, so that blocks are used twice.
  rm -r "$WORK/mnt/tree/raidd" && cp -a "$WORK/tree/raidd" "$WORK/mnt/tree/"
  local code=$?
  umount "$WORK/mnt" && return $code
}
checked() { # FILE_SYSTEM DEVICE
  case $1 in xfs) xfs_repair -n "$2" ;; ext4) fsck.ext4 -fn "$2" ;; esac
}
same() { # DEVICE
  local have
  mount -o ro "$1" "$WORK/mnt" && have=$(tree_sums "$WORK/mnt/tree") && umount "$WORK/mnt" || return 1
  [ "$have" = "$want" ] || { diff <(echo "$want") <(echo "$have") | head -n 5; return 1; }
}
# lsblk -f shows what udev has found, so udev runs for this step, with our rule for arrays; it must leave the members alone.
seen() { # FILE_SYSTEM
  local uuid code=1
  [ "$(blkid -p -o value -s TYPE "$ARRAY_DEV")" = "$1" ] || { blkid -p "$ARRAY_DEV"; return 1; }
  uuid=$(blkid -p -o value -s UUID "$ARRAY_DEV")
  [ -x /lib/systemd/systemd-udevd ] || return 0
  export SYSTEMD_IGNORE_CHROOT=1
  cp "$REPO/systemd/61-raidd-device.rules" /etc/udev/rules.d/
  /lib/systemd/systemd-udevd --daemon 2> /dev/null
  udevadm trigger -c change "$ARRAY_DEV" "${MEMBERS[@]}" && udevadm settle -t 20
  lsblk -f "$ARRAY_DEV" | tee "$WORK/lsblk"
  awk '{ print $2 }' "$WORK/lsblk" | grep -qx "$1" && [ "/dev/disk/by-uuid/$uuid" -ef "$ARRAY_DEV" ] &&
    ! grep -q '^md' /proc/mdstat && code=0
  udevadm control --exit
  return $code
}
through_md() { checked "$1" $MD && same $MD; }

for level in 0 5 6; do
  check "$level-create" create_array $level --name "fs$level" --force "${MEMBERS[@]}" || exit 1
  for fs in ext4 xfs; do
    check "$level-$fs-mkfs" made $fs
    check "$level-$fs-seen" seen $fs
    check "$level-$fs-fill" filled
    check "$level-$fs-fsck" checked $fs "$ARRAY_DEV"
    check "$level-$fs-same" same "$ARRAY_DEV"
  done
  check "$level-sync" wait_resync
  check "$level-stop" stop_array
  check "$level-md" md_check true
  check "$level-md-same" with_md through_md xfs
  [ $level = 0 ] || check "$level-md-same-degraded" md_lacking "1" through_md xfs
done
