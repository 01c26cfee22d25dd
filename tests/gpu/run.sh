#!/usr/bin/env bash
# Runs the GPU tests and benches of its own folder (made by build.sh), each stage in under 9
# minutes, and writes report.json and report.txt.
#
#   run.sh [--stage kernels|model] [OUT]      default: both stages; OUT: the folder itself
#
# Exit code 0: every test passed. The report covers both stages if OUT has the results of both.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
stages=(kernels model)
if [ "${1:-}" = --stage ]; then
  case ${2:-} in
    kernels | model) stages=("$2") ;;
    *) echo "run.sh: --stage is \"${2:-}\"; it must be kernels or model" >&2 && exit 2 ;;
  esac
  shift 2
fi
mkdir -p "${1:-$here}"
out=$(cd "${1:-$here}" && pwd)
given_path=${LD_LIBRARY_PATH:-}  # for Python, whose extensions must not load our libraries
export LD_LIBRARY_PATH="$here/lib${given_path:+:$given_path}"
cd "$here"

# Python unpacks xz: the machine may have no xz program.
if [ ! -d bin ]; then
  python3 -c 'import tarfile; tarfile.open("contents.tar.xz").extractall()' || exit 2
fi

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

# As check, for commands that need cuBLASLt. If it is not installed, one line of the report says so.
check_cublas() {
  local folders
  folders=$(folders_of_cublas)
  if [ -z "$folders" ] && ! ldconfig -p 2>/dev/null | grep -q libcublasLt; then
    printf '%s\tnot installed\t0\n' "$1" >>"$results"
    return
  fi
  check "$1" "$2" env LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$folders" "${@:3}"
}

# Figures first: if time runs out, checks are lost, not figures.
run_kernels() {
  check bench 120 sh -c "bin/gpu_bench >'$out/bench.json'"
  check peers 90 sh -c "LD_LIBRARY_PATH='$given_path' python3 peers.py >'$out/peers.json'"

  # Attention and RopeWrite on the device only; the others compare all backends of the machine.
  check attention 90 bin/gpu_tests --gtest_filter='*Attention*/CUDA'
  check rope_write 30 bin/gpu_tests --gtest_filter='*RopeWrite*/CUDA'
  check sample 30 bin/gpu_tests --gtest_filter='*Sample*/CUDA'
  check dense 60 bin/gpu_tests --gtest_filter='*Linear*:*Logits*:*Embed*:*Logprobs*'
  # The device opened as sm_80: decode without clusters, against decode with clusters.
  check split_path 60 bin/gpu_tests --gtest_filter='*SplitPath*Gpu*'
  check_cublas fast_gemm 30 bin/gpu_tests --gtest_filter='*FastGemmTest*Gpu*'
  check backend 30 bin/gpu_tests --gtest_filter='BackendTest*:CopyPages*'
  for kv in fp16 int8; do
    check "golden_$kv" 30 bin/golden_check tests/golden --backend cuda --kv "$kv"
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
}

run_model() {
  local work skip='-*emulated*'
  work=$(mktemp -d)
  check model_bench 120 \
    sh -c "bin/gpu_model_bench --device cuda --work-folder '$work' >'$out/model_bench.json'"
  check model_peers 240 env LD_LIBRARY_PATH="$given_path" \
    python3 peers_model.py "$work/random-model" "$out/model_peers.json"
  # Prefill with cuBLASLt, and its KL to the CPU.
  check_cublas model_fast 60 \
    sh -c "bin/gpu_model_bench --device cuda --gemm fast --depths 0 --batch 2 \
      --batch-depth 64 --work-folder '$work' >'$out/model_fast.json'"
  rm -rf "$work"
  check_cublas model_fast_kl 60 \
    bin/gpu_model_tests --gtest_filter='*DeviceModelTest.NextTokens*/cuda_fast'
  for test in NextTokens GreedyText; do
    check "model_$test" 60 bin/gpu_model_tests --gtest_filter="*DeviceModelTest.$test*/cuda$skip"
  done
  check model_bits 90 bin/gpu_model_tests --gtest_filter="*DeviceEngineTest.EqualBits*/cuda*$skip"
  check model_server 60 \
    bin/gpu_model_tests --gtest_filter="*DeviceTest.*/cuda*:*EndToEndTest.*/cuda*$skip"
  check model_memory 200 bin/gpu_model_tests --gtest_filter="*ManyMixedRequests*/cuda*$skip"
}

nvidia-smi >"$out/nvidia-smi.log" 2>&1 || true
for stage in "${stages[@]}"; do
  results="$out/results-$stage.tsv"
  : >"$results"
  stage_end=$((SECONDS + 510))
  "run_$stage"
done
python3 report.py "$out"
