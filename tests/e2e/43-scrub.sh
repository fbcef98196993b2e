#!/usr/bin/env bash
# Corruption planted on one member, in data, P and Q of RAID 6: scrub names the member and the sector, and puts it right; on RAID 5
# it tells and touches nothing unless told.
# bed: uml
# time: 90
# mem: 5G
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/faults.sh"

need scrub mdadm || exit 0
# ended: the scrub has.
ended() { raidctl scrub status --output json s | tr -d ' \n' | grep -q '"progress":null' && ! raidctl scrub status --output json s | grep -q '"ended": null'; }
# scrubbed ARGUMENT...: a scrub from begin to end.
scrubbed() { raidctl scrub start s "$@" > /dev/null && for _ in {1..300}; do ended && return 0; sleep 0.1; done; raidctl scrub status s; return 1; }
last() { raidctl scrub status s | head -n 1; }
# offset MEMBER: of its data, in bytes.
offset() { raidctl examine --output json "$1" | json data_offset_bytes; }
# spoil MEMBER SECTOR: eight sectors of its data area, behind the array's back.
spoil() { stream 77 4096 | dd of="$1" bs=4096 oflag=seek_bytes seek=$(($(offset "$1") + $2 * 512)) conv=notrunc,fsync status=none; }
# Members are held, so they are spoilt below: the loop devices under the NVMe namespaces.
check loops loop_members 5 40M
BELOW=("${MEMBERS[@]}")
check members nvme_loop "${MEMBERS[@]}"
check daemon start_daemon
check create-6 create_array 6 --name s --assume-clean "${MEMBERS[@]}"
check put-6 put "$ARRAY_DEV" 0 1 $((64 << 20))
want=$(sum "$ARRAY_DEV")
check clean-scrub scrubbed
equal nothing-found 1 "$(last | grep -c ' 0 sectors differ')"

# Chunk 64 KiB, left-symmetric, five members: in stripe 0 slots 4 and 0 hold P and Q, in stripe 1 slots 3 and 4.
planted() { # NAME SLOT SECTOR WHAT
  check "$1-spoil" spoil "${BELOW[$2]}" "$3"
  check "$1-check" scrubbed
  check "$1-names" bash -c "raidctl scrub status s | sed -n 2p | grep -q '$4 on ${MEMBERS[$2]} is wrong: 8 sectors from $(($(offset "${MEMBERS[$2]}") / 512 + $3)) on.*left as it is'" || raidctl scrub status s
  check "$1-repair" scrubbed --repair
  equal "$1-repaired" 1 "$(last | grep -c ' 8 sectors differ, 8 put right')"
  check "$1-again" scrubbed
  equal "$1-right" 1 "$(last | grep -c ' 0 sectors differ')"
  equal "$1-same" "$want" "$(sum "$ARRAY_DEV")"
}
planted data 1 16 data
planted p 4 32 P
planted q 0 48 Q
planted later 3 $((128 + 8)) P
check stop-6 raidctl stop s
check parity-6 parity_right "${MEMBERS[@]}"

check create-5 create_array 5 --name s --force --assume-clean "${MEMBERS[@]:0:4}"
check put-5 put "$ARRAY_DEV" 0 2 $((64 << 20))
check spoil-5 spoil "${BELOW[3]}" 24
# data MEMBER: sum of its data area.
data() { dd if="$1" bs=1M iflag=skip_bytes skip="$(offset "$1")" status=none | sha256sum; }
before=$(data "${BELOW[3]}")
check check-5 scrubbed
check tells-5 bash -c "raidctl scrub status s | grep -q 'cannot be told.*8 sectors from 24 on'" || raidctl scrub status s
refused locate-5 1 'one parity.*--policy parity' raidctl scrub start s --repair
equal untouched-5 "$before" "$(data "${BELOW[3]}")"
check parity-5 scrubbed --repair --policy parity
check again-5 scrubbed
equal right-5 1 "$(last | grep -c ' 0 sectors differ')"
check stop-5 raidctl stop s
check md-parity-5 parity_right "${MEMBERS[@]:0:4}"
