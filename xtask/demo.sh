#!/usr/bin/env bash
# The main job, step by step, each with its time: an array on eight drives, a file system on it, files in it, then the
# same members under mdadm. Run by `cargo xtask demo`, in a bed or on a real machine as root.
# DEMO_LEVEL 0|5|6, DEMO_FS xfs|ext4, DEMO_MEMBERS "DEV ..." (default: eight of the bed's, or loop devices);
# DEMO_COUNT=1: a line "ok NAME" for each step, for the test run to count.
. "$(dirname "$0")/../tests/e2e/lib.sh"
level=${DEMO_LEVEL:-6} fs=${DEMO_FS:-xfs} mnt=$WORK/mnt
[ -n "${DEMO_COUNT:-}" ] || ok() { :; }
began=${EPOCHREALTIME/./}

seconds() { local us=$((${EPOCHREALTIME/./} - $1)); printf '%d.%02d' $((us / 1000000)) $((us % 1000000 / 10000)); }

# step NAME TITLE COMMAND...: runs one step, prints its time, ends the demo where it fails.
step() {
  local name=$1 title=$2 start=${EPOCHREALTIME/./} out=$WORK/step.out; shift 2
  if "$@" > "$out" 2>&1; then
    printf '%8s s  %s\n' "$(seconds "$start")" "$title"
    sed 's/^/             /' "$out" | tail -n "${SHOW:-8}"
    ok "$name"
  else
    local code=$?
    printf '%8s s  %s: FAILED (%s)\n' "$(seconds "$start")" "$title" "$code"
    sed 's/^/             /' "$out" | tail -n 30
    not_ok "$name" "exit status $code"
    exit 1
  fi
}

get_members() {
  if [ -n "${DEMO_MEMBERS:-}" ]; then read -ra MEMBERS <<< "$DEMO_MEMBERS"; else members 8; fi
  echo "${MEMBERS[*]}"
}

create() { create_array "$level" "${MEMBERS[@]}" && echo "$ARRAY_DEV"; }

# Tools that know nothing of us see an ordinary disk with a file system.
seen() {
  blkid -p "$ARRAY_DEV" && lsblk -o NAME,TYPE,SIZE,FSTYPE "$ARRAY_DEV" || return 1
  [ "$(blkid -p -o value -s TYPE "$ARRAY_DEV")" = "$fs" ] && [ "$(lsblk -ndo TYPE "$ARRAY_DEV")" = disk ]
}

# A real tree: this repository's sources, a few hundred small files, some large ones.
copy_tree() {
  mkdir -p "$mnt/tree/src" "$mnt/tree/doc" "$mnt/tree/bin"
  tar -C "$REPO" --exclude=./target --exclude=./.bed --exclude=./.git -cf - . | tar -C "$mnt/tree/src" -xf - || return 1
  find /usr/share/doc -name copyright -type f 2> /dev/null | head -n 200 | tar -cf - -T - 2> /dev/null | tar -C "$mnt/tree/doc" -xf - || return 1
  cp "$RAIDD_BIN_DIR/raidd" "$RAIDD_BIN_DIR/raidctl" "$(command -v bash)" "$(command -v fio)" "$mnt/tree/bin/" || return 1
  # A directory entry for a name that a broken one would mangle.
  printf 'still here\n' > "$mnt/tree/name with spaces and ü"
  sync -f "$mnt" && du -sh "$mnt/tree" | cut -f 1 && find "$mnt/tree" -type f | wc -l
}

# The sums are taken from the source of the copy, where there is one, so that a copy gone wrong shows.
sums() {
  tree_sums "$mnt/tree" > "$WORK/sums" && [ -s "$WORK/sums" ] || return 1
  cmp "$RAIDD_BIN_DIR/raidd" "$mnt/tree/bin/raidd" && cmp "$REPO/Cargo.lock" "$mnt/tree/src/Cargo.lock" && wc -l < "$WORK/sums"
}

# verify DIR: drops what the kernel has cached, so that the bytes come from the members.
verify() {
  echo 3 > /proc/sys/vm/drop_caches
  (cd "$1/tree" && sha256sum --quiet -c "$WORK/sums") && echo "$(wc -l < "$WORK/sums") files match"
}

fio_verify() {
  local bytes=32m
  # Software emulation takes its time.
  [ "${RAIDD_BED:-}" != qemu ] || bytes=12m
  truncate -s 256M "$mnt/verify" || return 1
  IO_SIZE=$bytes "$REPO/fio-jobs/run" verify "$mnt/verify" | grep -E 'err=|READ:|WRITE:'
  local codes=("${PIPESTATUS[@]}")
  rm -f "$mnt/verify"
  return "${codes[0]}"
}

repair_check() { case $fs in xfs) xfs_repair -n "$ARRAY_DEV" ;; ext4) e2fsck -fn "$ARRAY_DEV" ;; esac; }

make_fs() { case $fs in xfs) mkfs.xfs -q "$ARRAY_DEV" ;; ext4) mkfs.ext4 -q "$ARRAY_DEV" ;; esac; }

md_mount() { md_assemble --readonly "${MEMBERS[@]}" && mount -o ro -t "$fs" /dev/md127 "$mnt" && grep -A 2 md127 /proc/mdstat; }

md_check() {
  local count
  md_assemble "${MEMBERS[@]}" || return 1
  count=$(md_mismatches) || return 1
  echo "mismatch_cnt $count"
  md_stop && [ "$count" = 0 ]
}

need demo fio mdadm "mkfs.$fs" sha256sum || exit 1
mkdir "$mnt"
[ -n "${RAIDD_BED:-}" ] || modprobe ublk_drv 2> /dev/null
printf 'RAID %s, %s, Linux %s, %s\n' "$level" "$fs" "$(uname -r)" "$(mdadm --version 2>&1 | cut -d ' ' -f 1-3)"
step members "members" get_members
step daemon "start raidd and wait for its socket" start_daemon
step create "raidctl create --level $level ${MEMBERS[0]} ... ${MEMBERS[-1]}" create
step mkfs "mkfs.$fs $ARRAY_DEV" make_fs
step seen "blkid and lsblk see it" seen
step mount "mount" mount -t "$fs" "$ARRAY_DEV" "$mnt"
step copy "copy a file tree in" copy_tree
step sums "checksums of the tree" sums
step verify "drop caches, read the tree back" verify "$mnt"
step fio "fio verify job: 4 KiB to 4 MiB mixed, crc32c" fio_verify
step umount "unmount" umount "$mnt"
SHOW=2 step fsck "check the file system" repair_check
[ "$level" = 0 ] || step resync "wait for the end of the resync" wait_resync "$ARRAY_DEV" 300
step stop "raidctl stop $ARRAY_DEV" stop_array
ARRAY_DEV=
step end "stop raidd" stop_daemon
step md-mount "mdadm --assemble --readonly, mount" md_mount
step md-verify "read the tree back through md" verify "$mnt"
step md-umount "unmount, mdadm --stop" bash -c "umount $mnt && for i in 1 2 3 4 5; do mdadm --stop /dev/md127 && exit; sleep 0.3; done; exit 1"
[ "$level" = 0 ] || step md-check "mdadm --assemble, check" md_check
printf '%8s s  in all\n' "$(seconds "$began")"
