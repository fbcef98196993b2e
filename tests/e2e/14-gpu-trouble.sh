#!/usr/bin/env bash
# A GPU driver or card that is not as it should be: a clear line in the doctor and in the daemon's log, and the CPU computes
# right parity. The driver's library is a stand-in (raidd/tests/fake-cuda), so this says nothing of real ones.
# bed: any
# time: 90
# mem: 6G

. "$(dirname "$0")/lib.sh"

need gpu-trouble cc mdadm || exit 0
mkdir -p "$WORK/whole" "$WORK/text" "$WORK/nothing"
cc -std=gnu11 -shared -fPIC -o "$WORK/whole/libcuda.so.1" "$REPO/raidd/tests/fake-cuda/libcuda.c" || exit 1
echo 'not a library' > "$WORK/text/libcuda.so.1"
# The bindings look for this name first.
for kind in whole text; do cp "$WORK/$kind/libcuda.so.1" "$WORK/$kind/libcuda.so"; done
members 4 || exit 1

# said NAME PATTERN FILE: ok if a line of the file matches.
said() {
  grep -qE -- "$2" "$3" && { ok "$1"; return 0; }
  not_ok "$1" "no line with '$2'"
  grep -E 'GPU|CUDA' "$3" | cut -c1-300 | sed 's/^/#   /'
}

CASES=0   # each writes to its own place, so that one look at the end sees all

# trouble NAME FOLDER WRONG GPU DOCTOR LOG: the same driver for doctor and daemon; patterns of what each must say.
trouble() {
  local name=$1 folder=$2 wrong=$3 gpu=$4
  printf 'defaults:\n  gpu: %s\n' "$gpu" > "$WORK/raidd.yaml"
  : > "$LOG"
  export LD_LIBRARY_PATH=$WORK/$folder FAKE_CUDA=$wrong
  raidctl doctor --config "$WORK/raidd.yaml" > "$WORK/doctor.out" 2>&1
  start_daemon --config "$WORK/raidd.yaml" || { not_ok "$name/daemon"; return 1; }
  unset LD_LIBRARY_PATH FAKE_CUDA
  said "$name/doctor" "$5" "$WORK/doctor.out"
  # What is there is zero, or of the case before: its parity is right in either case.
  create_array 6 --force --assume-clean --name "$name" "${MEMBERS[@]}" || { not_ok "$name/create"; return 1; }
  check "$name/write" dd if=/dev/urandom of="$ARRAY_DEV" bs=1M count=32 seek=$((CASES * 64)) oflag=direct status=none
  check "$name/write-small" dd if=/dev/urandom of="$ARRAY_DEV" bs=4k count=64 seek=$((CASES * 16384 + 10001)) oflag=direct status=none
  said "$name/log" "$6" "$LOG"
  raidctl metrics > "$WORK/metrics"
  equal "$name/metrics" 1 "$(grep -E '^raidd_gpu_unavailable' "$WORK/metrics" | grep -oE '[0-9]+$')"
  check "$name/stop" stop_array
  check "$name/end" stop_daemon
  CASES=$((CASES + 1))
}

if ldconfig -p | grep -q libcuda.so.1; then
  skip without "this machine has a CUDA driver"
else
  trouble without nothing '' auto \
    '^none +GPU +no CUDA driver \(libcuda.so.1\) is installed.*parity runs on the CPU' \
    'INFO .*no GPU computes parity, the CPU does: no CUDA driver \(libcuda.so.1\) is installed$'
fi
trouble broken text '' auto \
  '^WARN +GPU .*libcuda.so.1 is there but cannot be loaded: .*parity runs on the CPU' \
  'WARN .*no GPU computes parity.*is there but cannot be loaded: .*; install NVIDIA.s driver again'
trouble old whole old auto \
  '^WARN +GPU .*speaks CUDA 11\.4, and 12\.0 is the least.*parity runs on the CPU' \
  'WARN .*no GPU computes parity.*CUDA 11\.4.*; install NVIDIA.s driver R525 or newer'
trouble full whole full auto \
  '^WARN +GPU 0 .*CUDA_ERROR_OUT_OF_MEMORY; parity runs on the CPU' \
  'WARN .*GPU lane to GPU 0 \(Fake\): .*CUDA_ERROR_OUT_OF_MEMORY; parity is computed on the CPU.*; end other programs'
check full/opens-counted grep -qE '^raidd_lane_failed_opens_total.* [1-9]' "$WORK/metrics"
trouble missing whole full 3 \
  '^FAIL +GPU +there is no GPU 3; present are 0 \(Fake, GPU-11111111-.*parity runs on the CPU' \
  'WARN .*no GPU computes parity.*gpu: 3: there is no GPU 3; present are 0 \(Fake.*; name a GPU that is present'

md_assemble "${MEMBERS[@]}" || { not_ok md; exit 1; }
equal parity 0 "$(md_mismatches)"
check md-stop md_stop
