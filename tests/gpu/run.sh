#!/usr/bin/env bash
# Runs a stage of the GPU tests and benches of its folder (made by build.sh), in under 7 minutes.
#
#   run.sh --stage correctness|speed|cpu OUT
#
# Writes to OUT: report.json and report.md, of all stages so far, and STAGE.tar.gz, the stage's logs
# and figures. LSSAR_ROOT: the repository's tree, which has the golden vectors and models; default:
# the folder two above this script's. Exit code 0: every check passed.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "${LSSAR_ROOT:-$here/../..}" && pwd)
if [ "${1:-}" != --stage ] || [ $# -ne 3 ]; then
  echo "usage: run.sh --stage correctness|speed|cpu OUT" >&2 && exit 2
fi
stage=$2
case $stage in
  correctness | speed | cpu) ;;
  *) echo "run.sh: --stage is \"$stage\"; it must be correctness, speed or cpu" >&2 && exit 2 ;;
esac
mkdir -p "$3" || exit 2
reports=$(cd "$3" && pwd)
out=$(mktemp -d)  # logs and figures of all stages
trap 'rm -rf "$out"' EXIT

# Python unpacks: the machine may have no xz program.
unpack() {
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$@"
}
if [ -d "$here/bin" ]; then
  kit=$here
else
  kit=$out/kit
  mkdir "$kit" && unpack "$here/contents.tar.xz" "$kit" || exit 2
fi
for earlier in correctness speed cpu; do
  if [ "$earlier" != "$stage" ] && [ -f "$reports/$earlier.tar.gz" ]; then
    unpack "$reports/$earlier.tar.gz" "$out" || exit 2
  fi
done
touch "$out/.begin"
given_path=${LD_LIBRARY_PATH:-}  # for Python, whose extensions must not load our libraries
export LD_LIBRARY_PATH="$kit/lib${given_path:+:$given_path}"
bin=$kit/bin
cd "$root" || exit 2

# check NAME SECONDS COMMAND...: one line of the report, output in OUT/NAME.log. A check that does
# not finish in time has failed.
check() {
  local name=$1 limit=$2 start=$SECONDS
  shift 2
  local left=$((stage_end - SECONDS))
  if [ "$left" -lt "$limit" ]; then limit=$((left > 1 ? left : 1)); fi
  timeout "$limit" "$@" >"$out/$name.log" 2>&1
  local status=$?
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - start))" >>"$results"
  echo "$name: exit $status, $((SECONDS - start)) s"
}

# Folders of cuBLASLt from a PyTorch wheel.
folders_of_cublas() {
  LD_LIBRARY_PATH=$given_path python3 - <<'PYTHON' 2>/dev/null
import glob, os, site
paths = [glob.glob(f'{folder}/nvidia/*/lib/libcublasLt.so.*') for folder in site.getsitepackages()]
print(':'.join(sorted({os.path.dirname(path) for path in sum(paths, [])})))
PYTHON
}

run_correctness() {
  local skip='-*emulated*' short='*RaggedBatch/CUDA:*LongRows*/CUDA'
  # Attention, RopeWrite and Sample on the device only; the others compare all backends.
  check attention 60 "$bin/gpu_tests" --gtest_filter='*Attention*/CUDA:*TwoPlanes*/CUDA'
  check rope_write 30 "$bin/gpu_tests" --gtest_filter='*RopeWrite*/CUDA'
  check sample 30 "$bin/gpu_tests" --gtest_filter='*Sample*/CUDA'
  check dense 45 "$bin/gpu_tests" --gtest_filter="*Linear*:*Logits*:*Embed*:*Logprobs*$skip"
  # The device opened as sm_80: decode without clusters, against decode with clusters.
  check split_path 45 "$bin/gpu_tests" --gtest_filter='*SplitPath*Gpu*'
  # cuBLASLt's numbers against our own kernels.
  check library_gemm 30 "$bin/gpu_tests" --gtest_filter='*LibraryGemmTest*Gpu*'
  check backend 20 "$bin/gpu_tests" --gtest_filter='BackendTest*:CopyPages*'
  # The filters of tests/golden/CMakeLists.txt: huge_norms is for fp32 pages only.
  for filter in gpt_ variant_ prompt_ power_ kind_ _16k chunk same zero; do
    check "golden_fp16_$filter" 30 \
      "$bin/golden_check" tests/golden --backend cuda --kv fp16 --filter "$filter"
  done
  for filter in gpt_ variant_ prompt_; do
    check "golden_int8_$filter" 30 \
      "$bin/golden_check" tests/golden --backend cuda --kv int8 --filter "$filter"
  done
  for filter in gpt_ prompt_ power_ _16k chunk same zero; do
    check "golden_fx16_$filter" 30 \
      "$bin/golden_check" tests/golden --backend cuda --kv fx16 --filter "$filter"
  done
  for served in fp16 int8 fx16 fp16_invariant; do
    for test in NextToken GreedyText; do
      check "model_${test}_$served" 45 \
        "$bin/gpu_model_tests" --gtest_filter="*DeviceModelTest.$test*/cuda_$served"
    done
  done
  # With programmatic dependent launch, and without.
  for overlap in 1 0; do
    check "model_bits_overlap_$overlap" 60 env LSSAR_CUDA_OVERLAP="$overlap" \
      "$bin/gpu_model_tests" --gtest_filter="*DeviceEngineTest.EqualBits*/cuda*$skip"
  done
  check model_bits_same 5 bash -c \
    '[ "$(grep "^digest" "$1")" = "$(grep "^digest" "$2")" ] && grep "^digest" "$1"' - \
    "$out/model_bits_overlap_1.log" "$out/model_bits_overlap_0.log"
  check model_server 60 \
    "$bin/gpu_model_tests" --gtest_filter="*DeviceTest.*/cuda*:*EndToEndTest.*/cuda*$skip"
  if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
      check "sanitizer_$tool" 45 compute-sanitizer --tool "$tool" --error-exitcode 9 \
        "$bin/gpu_tests" --gtest_filter="$short"
    done
  else
    printf 'sanitizer\tnot installed\t0\n' >>"$results"
  fi
  check model_memory 240 "$bin/gpu_model_tests" --gtest_filter="*ManyMixedRequests*/cuda*$skip"
}

run_speed() {
  local work=$out/work
  mkdir "$work"
  check bench 90 sh -c "'$bin/gpu_bench' >'$out/bench.json'"
  check peers 60 sh -c \
    "LD_LIBRARY_PATH='$given_path' python3 tests/gpu/peers.py >'$out/peers.json'"
  check model_bench 100 sh -c \
    "'$bin/gpu_model_bench' --device cuda --work-folder '$work' >'$out/model_bench.json'"
  # Prefill without cuBLASLt.
  check model_invariant 45 sh -c "'$bin/gpu_model_bench' --device cuda --batch-invariant \
    --depths 0 --batch 2 --batch-depth 64 --work-folder '$work' >'$out/model_invariant.json'"
  check model_peers 200 env LD_LIBRARY_PATH="$given_path" \
    python3 tests/gpu/peers_model.py "$work/random-model" "$out/model_peers.json"
  rm -rf "$work"
}

# The CPU backend with 1 to 16 threads, as many as the machine has.
run_cpu() {
  local work=$out/work
  mkdir "$work"
  for threads in 16 8 4 2 1; do
    if [ "$threads" -gt "$(nproc)" ]; then continue; fi
    check "cpu_$threads" 150 sh -c "'$bin/gpu_model_bench' --device cpu --threads $threads \
      --depths 0,1024 --batch 16 --batch-depth 256 --prompt 256 --repeats 3 \
      --work-folder '$work' >'$out/cpu_$threads.json'"
  done
  rm -rf "$work"
}

results="$out/results-$stage.tsv"
: >"$results"
missing_cublas=0
cublas=$(folders_of_cublas)
if [ -n "$cublas" ]; then
  export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$cublas"
elif ! ldconfig -p 2>/dev/null | grep -q libcublasLt && [ "$stage" != cpu ]; then
  # --device cuda does not start without it: the model tests fail.
  missing_cublas=1
fi
stage_end=$((SECONDS + 400))
nvidia-smi >"$out/$stage-nvidia-smi.log" 2>&1 || true
"run_$stage"
if [ "$missing_cublas" = 1 ]; then printf 'cublas\tnot installed\t0\n' >>"$results"; fi
LD_LIBRARY_PATH=$given_path python3 tests/gpu/report.py "$out" "$reports"
status=$?
# What this stage wrote, in one archive.
(cd "$out" && find . -maxdepth 1 -type f -newer .begin ! -name .begin -print0 |
  tar -czf "$reports/$stage.tar.gz" --null -T -)
exit "$status"
