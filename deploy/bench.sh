#!/bin/sh
# Installs missing Debian 12 packages, builds, and measures the machine's bandwidth and FLOP
# ceilings, the kernels beside their peers, and whole models. With the peer it took 453 s after the
# build, on two cores of a 4th-generation AMD EPYC that read 30 GB/s, when llama.cpp ran once for a
# figure; it runs with flash attention on and off now, and with a cache of 8 bits beside ours. Run
# nothing else on the machine meanwhile.
#
#   sh deploy/bench.sh
#   sh deploy/bench.sh --peer-llama PATH/llama-bench   llama.cpp in the same run
#   sh deploy/bench.sh --out DIR                       folder for bench.json and bench.md
set -eu
caller=$PWD
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

usage() {
  echo "usage: sh deploy/bench.sh [--peer-llama PATH/llama-bench] [--out DIR]" >&2
  exit 2
}

# Prints and runs a command, then prints how long it took.
timed() {
  timed_start=$(date +%s)
  show "$@"
  echo "$(($(date +%s) - timed_start)) s"
}

log=build/bench.log
out=build/bench-results
peer=
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case $1 in
    --peer-llama) peer=$(from_caller "$2") ;;
    --out) out=$(from_caller "$2") ;;
    *) usage ;;
  esac
  shift 2
done
if [ -n "$peer" ] && [ ! -x "$peer" ]; then
  echo "--peer-llama: $peer is not an executable" >&2
  exit 2
fi

start_log
mkdir -p "$out"

say "Installing missing Debian packages (deploy/packages.sh)"
logged install_packages build test

# CPU benches only: skip the CUDA build, which takes minutes.
say "Building the benches into build/release-cpu"
logged cmake --preset release -B build/release-cpu -DLSSAR_WITH_CUDA=OFF
logged cmake --build build/release-cpu --target linear_bench attention_bench model_bench \
  speculation_bench
bin=build/release-cpu/bin

start=$(date +%s)
say "The 124M shape, 16-bit weights"
timed "$bin/model_bench" --dtype fp16 --works decode --depths 0 ${peer:+--peer-llama "$peer"} \
  --json "$out/16bit.json"
say "The 124M shape, int8 weights, to a depth of 16K"
timed "$bin/model_bench" --dtype int8 --kv fp16,int8 --later-kv-works decode,together \
  ${peer:+--peer-llama "$peer"} --json "$out/int8.json"
say "The 124M shape, int4 weights beside int8, by turns"
timed "$bin/model_bench" --dtype int8,int4 --by-turns --depths 0 ${peer:+--peer-llama "$peer"} \
  --json "$out/4bit.json"
say "Speculative decoding: a passage of 2048 tokens, 256 of them copied"
timed "$bin/speculation_bench" --copying --dtype int8 --tokens 256 --pairs 5 \
  ${peer:+--peer-llama "$peer"} --json "$out/copy.json"
say "The shipped checkpoint on held-out text"
timed "$bin/model_bench" --model models/zoo/lssar-6m --text models/zoo/lssar-6m/held_out.bin \
  --json "$out/shipped.json"

say "GEMM beside oneDNN"
for weights in fp16 int8; do
  timed "$bin/linear_bench" --dtype "$weights" --rows 1,16,512 --samples 5 \
    --json "$out/linear-$weights.json"
done
say "LSSAR attention beside softmax on the same backend"
timed "$bin/attention_bench" --benchmark_filter='/(fp16|int8)/' --benchmark_min_time=0.02 \
  --benchmark_repetitions=5 --benchmark_report_aggregates_only=true \
  --benchmark_out="$out/attention.json" --benchmark_out_format=json

commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
say "Measured in $(($(date +%s) - start)) s. The figures, also in $out/bench.md and $out/bench.json"
echo
python3 tests/bench/report.py "$out" "$commit"
