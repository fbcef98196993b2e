#!/usr/bin/env bash
# The tools around the daemon: doctor sees what is there and what is missing, bench measures and stops when told, metrics
# are what Prometheus takes and count what was done.
# bed: any
# time: 60
. "$(dirname "$0")/lib.sh"

# --- doctor -------------------------------------------------------------------------------------------------------
check doctor raidctl doctor
equal doctor-passes true "$(raidctl doctor --output json | json passes)"
check doctor-says-kernel bash -c "raidctl doctor | grep -q \"kernel .*$(uname -r)\""
check doctor-says-ublk bash -c "raidctl doctor | grep -q '^OK .*ublk driver .*USER_COPY'"
check doctor-says-engine bash -c "raidctl doctor | grep -qE '^(OK|WARN) .*parity on the CPU '"
check doctor-says-gpu bash -c "raidctl doctor | grep -qE '^(OK|none|WARN) .*GPU'"
printf 'defaults:\n  parity_engine: abacus\n' > "$WORK/pin.yaml"
refused doctor-pin 1 "^FAIL +configuration .*pin.yaml:2: defaults.parity_engine: 'abacus' does not fit" raidctl doctor --config "$WORK/pin.yaml"
printf 'defaults:\n  chunck: 64K\n' > "$WORK/bad.yaml"
refused doctor-config 1 "^FAIL +configuration .*bad.yaml:2: unknown key" raidctl doctor --config "$WORK/bad.yaml"
printf 'defaults:\n  gpu: 31\n' > "$WORK/gpu.yaml"
refused doctor-gpu 1 '^FAIL +GPU .*parity runs on the CPU' raidctl doctor --config "$WORK/gpu.yaml"
printf 'defaults:\n  gpu: off\n' > "$WORK/off.yaml"
check doctor-gpu-off bash -c "raidctl doctor --config $WORK/off.yaml | grep -q '^none .*GPU .*off in the configuration'"
if mv /dev/ublk-control /dev/ublk-control.away; then
  refused doctor-no-ublk 1 '^FAIL +ublk driver +not loaded' raidctl doctor
  check doctor-no-ublk-fix bash -c "raidctl doctor | grep -q -- '-> modprobe ublk_drv'"
  mv /dev/ublk-control.away /dev/ublk-control
fi

# --- bench --------------------------------------------------------------------------------------------------------
check bench bash -c "raidctl bench parity --quick --bytes 4K,64K --memory 32M > $WORK/bench"
check bench-says-unit grep -q 'bytes of data per second, parity not counted' "$WORK/bench"
check bench-rows grep -qE '^ *scalar +64 KiB +cold( +[0-9.]+ ±[0-9]+%){7}' "$WORK/bench"
check bench-gpu grep -qE '^(no GPU: |gpu0: )' "$WORK/bench"
check bench-json bash -c "raidctl bench parity --quick --bytes 4K --memory 16M --engine scalar --output json > $WORK/bench.json"
equal bench-json-job encode-p "$(json job < "$WORK/bench.json")"
check bench-json-rate bash -c "grep -qE '\"gb_per_s\": [0-9.]+' $WORK/bench.json"
refused bench-bytes 2 '1000 is no multiple of 512' raidctl bench parity --bytes 1000
refused bench-memory 2 'is too much' raidctl bench parity --memory 1000T
refused bench-engine 2 "there is no 'abacus'; choose from .*scalar, gpu" raidctl bench parity --engine abacus
refused bench-job 2 'recover-two needs 2 data members' raidctl bench parity --data 1 --job recover-two
raidctl bench parity --rounds 1000 --bytes 64K --memory 32M --engine scalar > "$WORK/stopped" 2>&1 & bench=$!
sleep 1; kill -TERM $bench; wait $bench; equal bench-stopped 130 $?
check bench-stopped-says grep -q 'interrupted' "$WORK/stopped"

# --- metrics ------------------------------------------------------------------------------------------------------
refused metrics-no-daemon 3 'no raidd answers' raidctl metrics
refused metrics-json 2 'prints the text that Prometheus reads' raidctl metrics --output json
check members members 4
check daemon start_daemon
check metrics-idle bash -c "raidctl metrics | grep -qx 'raidd_arrays 0'"
check create create_array 5 --name count --assume-clean "${MEMBERS[@]}"
check write dd if=/dev/zero of="$ARRAY_DEV" bs=1M count=8 oflag=direct status=none
check read dd if="$ARRAY_DEV" of=/dev/null bs=1M count=4 iflag=direct status=none
sleep 0.2   # counters are published with the next pass of the engine
check metrics bash -c "raidctl metrics > $WORK/metrics"
value() { awk -v series="$1" '$1 == series { print $2 }' "$WORK/metrics"; }
equal metrics-written $((8 << 20)) "$(value 'raidd_request_bytes_total{array="count",op="write"}')"
check metrics-read test "$(value 'raidd_request_bytes_total{array="count",op="read"}')" -ge $((4 << 20))
check metrics-members test "$(value 'raidd_member_bytes_total{array="count",op="write"}')" -gt $((8 << 20))
equal metrics-health 1 "$(value 'raidd_array_health{array="count",health="optimal"}')"
equal metrics-degraded 0 "$(value 'raidd_array_degraded_members{array="count"}')"
check metrics-engine grep -q '^raidd_parity_engine_info{' "$WORK/metrics"
check metrics-form bash -c "! grep -vE '^(# (HELP|TYPE) raidd_[a-z_0-9]+ .+|raidd_[a-z_0-9]+(\{[^}]*\})? [0-9.e+-]+)\$' $WORK/metrics"
if need metrics-promtool promtool; then check metrics-promtool promtool check metrics < "$WORK/metrics"; fi
kill -STOP "$DAEMON"
refused metrics-stuck 3 'has not answered for 10 s' timeout 60 raidctl metrics
kill -CONT "$DAEMON"
check metrics-again raidctl metrics
check stop stop_array count
check daemon-ends stop_daemon
