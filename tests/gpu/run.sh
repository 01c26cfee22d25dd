#!/usr/bin/env bash
# Runs the GPU tests and benches of the folder it lies in (build.sh), in under 8 minutes, and writes
# report.json and report.txt.
#
#   run.sh [OUT]      default: the folder itself. Exit code 0: every test passed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here}
mkdir -p "$out"
export LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
cd "$here"
results="$out/results.tsv"
: >"$results"

total_seconds=460

# check NAME SECONDS COMMAND...: one line of the report; its output in OUT/NAME.log. What no time is
# left for has not passed.
check() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  local left=$((total_seconds - SECONDS))
  if [ "$left" -lt "$limit" ]; then limit=$((left > 1 ? left : 1)); fi
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  local status=$?
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - start))" >>"$results"
  echo "$name: exit $status, $((SECONDS - start)) s"
}

nvidia-smi >"$out/nvidia-smi.log" 2>&1 || true

# First the figures: if time runs out, it is a checker's.
check bench 120 sh -c "bin/gpu_bench >'$out/bench.json'"
check peers 90 sh -c "python3 peers.py >'$out/peers.json'"

# Attention and RopeWrite on the device alone; the other tests compare all backends of the machine.
check attention 90 bin/gpu_tests --gtest_filter='*Attention*/CUDA'
check rope_write 30 bin/gpu_tests --gtest_filter='*RopeWrite*/CUDA'
check dense 60 bin/gpu_tests --gtest_filter='*Linear*:*Logits*:*Embed*:*TopLogprobs*'
check backend 30 bin/gpu_tests --gtest_filter='BackendTest*:CopyPages*'
for kv in fp16 bf16 int8; do
  check "golden_$kv" 30 bin/golden_check golden --backend cuda --kv "$kv"
done

if command -v compute-sanitizer >/dev/null; then
  short='*RaggedBatch/CUDA:*LongRows*/CUDA'
  for tool in memcheck racecheck initcheck synccheck; do
    check "sanitizer_$tool" 45 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      bin/gpu_tests --gtest_filter="$short"
  done
else
  printf 'sanitizer\tnot installed\t0\n' >>"$results"
fi

python3 report.py "$out"
