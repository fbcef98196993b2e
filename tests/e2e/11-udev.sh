#!/usr/bin/env bash
# A running udev leaves the members of our arrays alone, by the rule alone and by mdadm's file alone; once released, it
# gives them to MD, and raidctl takes them back from there.
# bed: uml
# time: 60
. "$(dirname "$0")/lib.sh"

if [ -n "${RAIDD_DAEMON:-}" ]; then
  mkdir "$WORK/bin" && ln -s "$(command -v "$RAIDD_DAEMON")" "$WORK/bin/raidd"
  export PATH=$WORK/bin:$PATH
fi
need udev udevadm mdadm || exit 0
[ -d /etc/mdadm ] && [ -x /lib/systemd/systemd-udevd ] || { skip udev "no udev or no Debian mdadm here"; exit 0; }
export SYSTEMD_IGNORE_CHROOT=1
CONF=/etc/mdadm/mdadm.conf.d/raidd.conf RULE=/etc/udev/rules.d/63-raidd-members.rules
# touch_members: what happens to the members when a machine boots or a device is plugged in.
touch_members() { udevadm trigger -c change "${MEMBERS[@]}" && udevadm settle -t 20; sleep 0.5; }
no_md() { ! grep -q '^md' /proc/mdstat; }

check loops loop_members 3 128M
/lib/systemd/systemd-udevd --daemon 2> /dev/null
check daemon start_daemon
check create raidctl create --level 5 --name udev "${MEMBERS[@]}"
check files grep -q ID_FS_UUID "$RULE"
check stop raidctl stop udev
touch_members
check left-alone no_md
mv "$CONF" "$WORK/conf"; touch_members
check left-alone-by-rule no_md
mv "$WORK/conf" "$CONF"; mv "$RULE" "$WORK/rule"; udevadm control --reload; touch_members
check left-alone-by-mdadm no_md
mv "$WORK/rule" "$RULE"; udevadm control --reload
check assemble raidctl assemble --name udev
check release raidctl stop --release udev
check files-gone test ! -e "$CONF" -a ! -e "$RULE"
touch_members
check given-to-md grep -q '^md' /proc/mdstat
check taken-back raidctl assemble --scan
check md-gone no_md
check stop-again raidctl stop udev
touch_members
check left-alone-again no_md
udevadm control --exit
