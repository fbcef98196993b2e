#!/usr/bin/env bash
# Members that come and go by command: fail, remove, add, re-add, spares; what is refused; what mdadm sees of it; a removed
# device is free for others, also one that has vanished.
# bed: uml
# time: 120
# mem: 5G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need members fio mdadm || exit 0
pull() { echo 1 > "/sys/class/nvme/$(basename "$1" | sed 's/n[0-9]*$//')/delete_controller"; }
# number MEMBER: its device number by mdadm. role MEMBER: its role.
role() { mdadm --examine "$1" | sed -n 's/.*Device Role : //p'; }
number() { raidctl examine --output json "$1" | json dev_number; }
# excl DEVICE: whether it can be had exclusively.
excl() { dmsetup create rf-excl --table "0 8 linear $1 0" && dmsetup remove rf-excl; }

check loops loop_members 8 96M
check members nvme_loop "${MEMBERS[@]}"
N=("${MEMBERS[@]}")
check daemon start_daemon
check create create_array 6 --name m --assume-clean "${N[@]:0:6}"
check put put "$ARRAY_DEV" 0 1 8388608

# --- a spare of a whole array -----------------------------------------------------------------------------------------
mkfs.ext4 -qF "${N[6]}"
refused add-filesystem 1 'ext4.*--force' raidctl add m "${N[6]}"
refused add-member 1 'a member of the running array m' raidctl add m "${N[2]}"
check add raidctl add --force m "${N[6]}"
equal spare-state iiiiiis "$(member_states)"
equal spare-role spare "$(role "${N[6]}")"
equal spare-number 6 "$(number "${N[6]}")"
refused held 1 'usy|failed' excl "${N[6]}"
refused remove-active 1 'fail it first' raidctl remove m "${N[2]}"
check remove-spare raidctl spare remove m "${N[6]}"
check free excl "${N[6]}"
equal no-spare iiiiii "$(member_states)"

# --- fail and remove ----------------------------------------------------------------------------------------------------
load failing 6 16
sleep 1
check fail raidctl fail m "${N[1]}"
equal failed-state ifiiii "$(member_states)"
check load finish_load
equal survivors A.AAAA "$(md_array_state "${N[0]}")"
refused held-failed 1 'usy|failed' excl "${N[1]}"
check remove raidctl remove m failed
check free-failed excl "${N[1]}"
equal removed-state imiiii "$(member_states)"
equal test 1 "$(detail_test)"
check same same "$ARRAY_DEV" $((80 << 20)) 0 0
check fail-two raidctl fail m "${N[4]}"
refused fail-three 1 'would fail.*without 3.*can do without 2: slot 0 .*slot 1 .missing.*slot 4 ' raidctl fail m "${N[0]}"
equal still ifiifi "$(member_states | sed 's/m/f/')"
check data-two put "$ARRAY_DEV" $((90 << 20)) 3 5000192
check data-two-same same "$ARRAY_DEV" $((90 << 20)) 3 5000192

# --- a member that vanishes ---------------------------------------------------------------------------------------------
check stop raidctl stop m
refused dirty-degraded 0 'left out.*re-add' raidctl assemble "${N[@]:0:6}"
equal known-stale imiimi "$(member_states m)"
check stop-again raidctl stop m
MEMBERS=("${N[0]}" "${N[2]}" "${N[3]}" "${N[5]}")
check md-same with_md same /dev/md127 $((90 << 20)) 3 5000192
check create-five create_array 5 --name v --assume-clean --force "${N[@]:0:4}"
check put-five put "$ARRAY_DEV" 0 5 8388608
check pull pull "${N[3]}"
check noticed states iiif
check gone soon test ! -b "${N[3]}"
check detached raidctl remove v detached
equal detached-state iiim "$(member_states)"
check data-five same "$ARRAY_DEV" 0 5 8388608
refused fail-last 1 'would fail.*slot 3 \(missing\)' raidctl fail v "${N[0]}"
check force raidctl fail --force v "${N[0]}"
check says-failed says FAILED
check alive alive
check stop-failed timeout 30 raidctl stop v
refused raid0 1 'raid0 has no redundancy' bash -c "raidctl create --yes --force --level 0 --name z ${N[4]} ${N[5]} && raidctl add --force z ${N[6]}"
check stop-0 raidctl stop z
check daemon-ends stop_daemon
