#!/bin/sh
# Fuzzes each target until it has used SECONDS of CPU time, earlier calls included. It may be
# stopped at any time; call it again to go on.
#
#   sh tests/fuzz/run.sh SECONDS [TARGET...]     default: all targets
#
# Builds lssar-fuzz in build/ci if needed. Each target keeps in build/fuzz/TARGET:
#   corpus/    inputs with new coverage, the start of the next run
#   found/     inputs that crash, hang or leak; none is good
#   log        the output of libFuzzer, of the last minutes
#   totals     CPU seconds and runs so far
# At the end, totals.txt here gets the totals of all targets; a machine without build/fuzz goes on
# from there. Remove a target's line and its build/fuzz/TARGET/totals when what it tests changes.
# As many targets run at the same time as the machine has cores (JOBS=N: N). Exit code 1: a target
# ended early, or its found/ is not empty.
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
FUZZ_SECONDS=$1
export FUZZ_SECONDS
shift
log=build/fuzz.log
start_log
logged install_packages build test
logged cmake --preset ci -DLSSAR_FUZZ_OPTIMIZATION=-O1
logged ninja -C build/ci lssar-fuzz
targets=${*:-$(build/ci/bin/lssar-fuzz --list)}

# One target, in parts of at most 5 minutes, so that a stop loses no more.
cat >build/fuzz_one.sh <<'ONE'
target=$1
directory=build/fuzz/$target
mkdir -p "$directory/corpus" "$directory/found"
dictionary=
if [ -f "tests/fuzz/dictionaries/$target" ]; then
  dictionary=-dict=tests/fuzz/dictionaries/$target
fi
seconds=0 runs=0
if [ ! -f "$directory/totals" ]; then
  sed -n "s/^$target //p" tests/fuzz/totals.txt >"$directory/totals"
fi
if [ -s "$directory/totals" ]; then
  read -r seconds runs <"$directory/totals"
fi
earlier=$seconds code=0
while [ "$seconds" -lt "$FUZZ_SECONDS" ] && [ "$code" = 0 ]; do
  part=$((FUZZ_SECONDS - seconds))
  [ "$part" -le 300 ] || part=300
  "build/ci/tests/fuzz/bin/$target" $dictionary "-max_total_time=$part" -timeout=20 \
    -rss_limit_mb=2048 "-artifact_prefix=$directory/found/" -print_final_stats=1 \
    "$directory/corpus" "tests/fuzz/corpus/$target" >"$directory/log" 2>&1 || code=$?
  # The second line of `times` is user and system time of this shell's children, as 1m2.34s.
  times >"$directory/times"
  seconds=$((earlier + $(awk -F'[ms ]+' 'NR == 2 { print int($1 * 60 + $2 + $3 * 60 + $4) }' \
    "$directory/times")))
  own=$(sed -n 's/^stat::number_of_executed_units: *//p' "$directory/log")
  runs=$((runs + ${own:-0}))
  echo "$seconds $runs" >"$directory/totals"
done
inputs=$(find "$directory/corpus" -type f | wc -l)
found=$(find "$directory/found" -type f | wc -l)
printf '%-20s %6s CPU s %12s runs %6s inputs  found: %s\n' \
  "$target" "$seconds" "$runs" "$inputs" "$found"
if [ "$code" != 0 ] || [ "$found" != 0 ]; then
  echo "$target: exit code $code, see $directory/log and $directory/found" >&2
  exit 1
fi
ONE
record_totals() {
  {
    sed -n '/^#/p' tests/fuzz/totals.txt
    for target in $(build/ci/bin/lssar-fuzz --list); do
      if [ -s "build/fuzz/$target/totals" ]; then
        echo "$target $(cat "build/fuzz/$target/totals")"
      else
        sed -n "/^$target /p" tests/fuzz/totals.txt
      fi
    done
  } >build/fuzz/totals.txt
  cp build/fuzz/totals.txt tests/fuzz/totals.txt
}
trap record_totals EXIT
trap 'exit 1' INT TERM
# shellcheck disable=SC2086  # a target a word
printf '%s\n' $targets | xargs -P "${JOBS:-$(nproc)}" -I '{}' sh build/fuzz_one.sh '{}' || exit 1
