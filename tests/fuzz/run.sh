#!/bin/sh
# Fuzzes for as long as asked; call it again to go on where it ended.
#
#   sh tests/fuzz/run.sh SECONDS [TARGET...]     SECONDS for each target (default: all targets)
#
# Builds lssar-fuzz in build/ci if needed. Each target keeps what it found in build/fuzz/TARGET:
#   corpus/    inputs with new coverage, the start of the next run
#   found/     inputs that crash, hang or leak; none is good
#   log        the output of libFuzzer
# As many targets run at the same time as the machine has cores (JOBS=N: N). Exit code 1: found/ of
# a target is not empty.
set -eu
cd "$(dirname "$0")/../.."
. deploy/packages.sh
. deploy/steps.sh

case "${1:-}" in
  '' | *[!0-9]*)
    echo "usage: sh tests/fuzz/run.sh SECONDS [TARGET...]" >&2
    exit 2
    ;;
esac
seconds=$1
shift
log=build/fuzz.log
start_log
logged install_packages build test
if [ ! -f build/ci/build.ninja ]; then
  logged cmake --preset ci
fi
logged ninja -C build/ci lssar-fuzz
targets=${*:-$(build/ci/bin/lssar-fuzz --list)}

# fuzz TARGET: one run.
cat >build/fuzz_one.sh <<'ONE'
target=$1
mkdir -p "build/fuzz/$target/corpus" "build/fuzz/$target/found"
dictionary=
if [ -f "tests/fuzz/dictionaries/$target" ]; then
  dictionary=-dict=tests/fuzz/dictionaries/$target
fi
"build/ci/tests/fuzz/bin/$target" $dictionary "-max_total_time=$FUZZ_SECONDS" -timeout=20 \
  -rss_limit_mb=2048 "-artifact_prefix=build/fuzz/$target/found/" -print_final_stats=1 \
  "build/fuzz/$target/corpus" "tests/fuzz/corpus/$target" >"build/fuzz/$target/log" 2>&1 || true
runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$target/log")
inputs=$(find "build/fuzz/$target/corpus" -type f | wc -l)
found=$(find "build/fuzz/$target/found" -type f | wc -l)
printf '%-20s %12s runs %6s inputs  found: %s\n' "$target" "${runs:-?}" "$inputs" "$found"
ONE
FUZZ_SECONDS=$seconds
export FUZZ_SECONDS
printf '%s\n' $targets | xargs -P "${JOBS:-$(nproc)}" -I '{}' sh build/fuzz_one.sh '{}'
for target in $targets; do
  if [ -n "$(find "build/fuzz/$target/found" -type f)" ]; then
    say "FAILED: build/fuzz/$target/found"
    exit 1
  fi
done
