#!/bin/sh
# Looks for tests that depend on time or luck: builds as deploy/test.sh does, runs the suite N
# times, four tests at a time beside two processes that keep two cores busy, and prints every test
# that failed once. Twenty rounds take hours on two cores.
#
#   sh deploy/stress.sh 20
#   sh deploy/stress.sh 20 -R EngineTest    the rest is for ctest: the tests whose names match
#
# The same command goes on where it was stopped: rounds of this commit with the same arguments for
# ctest are kept, and one that was interrupted runs again. Rounds of anything else, and of a tree
# with changes, are deleted at the start.
set -eu
cd "$(dirname "$0")/.."
. deploy/steps.sh

case ${1:-} in
  '' | *[!0-9]* | 0*)
    echo "usage: sh deploy/stress.sh N [CTEST ARGUMENTS]; N is the number of rounds, from 1" >&2
    exit 2
    ;;
esac
rounds=$1
shift

results=build/stress
log=$results/log
of=$results/of # what the rounds there are of
load_pids=

at_end() {
  if [ -n "$load_pids" ]; then
    kill $load_pids 2>/dev/null || true
  fi
}

busy() {
  while :; do :; done
}

# The commit and the arguments; nothing: the tree has changes.
describe() {
  if [ -z "$(git status --porcelain 2>&1)" ]; then
    printf '%s\n' "$(git rev-parse HEAD)" "$@"
  fi
}

start_log
described=$(describe "$@")
if [ -z "$described" ] || [ ! -f "$of" ] || [ "$described" != "$(cat "$of")" ]; then
  rm -f "$results"/round-*
fi
printf '%s\n' "$described" >"$of"

say "Building build/ci (cmake --preset ci && cmake --build --preset ci)"
logged cmake --preset ci
logged cmake --build --preset ci

busy &
load_pids=$!
busy &
load_pids="$load_pids $!"

round=1
while [ "$round" -le "$rounds" ]; do
  finished=$results/round-$round.log
  if [ -f "$finished" ]; then
    say "Round $round of $rounds ran before"
    grep -E '^[0-9]+% tests passed|^Total Test time' "$finished"
    round=$((round + 1))
    continue
  fi
  say "Round $round of $rounds ($(date +%H:%M:%S))"
  running=$results/running.log
  code=0
  ctest --test-dir build/ci --output-on-failure --no-tests=error --parallel 4 \
    --label-exclude '^(image|long|ptx|torch)$' "$@" >"$running" 2>&1 </dev/null || code=$?
  # ctest ends with 8 where tests failed. Without its summary it ran none.
  if ! grep -E '^[0-9]+% tests passed|^Total Test time' "$running" ||
    { [ "$code" -ne 0 ] && [ "$code" -ne 8 ]; }; then
    tail -n 20 "$running"
    exit 2
  fi
  mv "$running" "$finished"
  round=$((round + 1))
done

# Prints each test that failed, with its rounds; 1: there are some.
/usr/bin/python3 -B - "$results" "$rounds" <<'PYTHON'
import collections
import pathlib
import re
import sys

folder, num_rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
failed = collections.defaultdict(list)
for number in range(1, num_rounds + 1):
    log = (folder / f'round-{number}.log').read_text(encoding='utf-8', errors='replace')
    # ctest ends with a list of failures, timeouts and programs that are missing.
    last = log.rpartition('tests FAILED:\n')[2] if 'tests FAILED:\n' in log else ''
    for name in re.findall(r'^\t *\d+ - (.+) \(', last, re.MULTILINE):
        failed[name].append(number)
print(f'\nRounds: {num_rounds}. Tests that failed at least once: {len(failed)}')
for name, numbers in sorted(failed.items(), key=lambda item: (-len(item[1]), item[0])):
    print(f'  {name}: round {", ".join(map(str, numbers))}; {folder}/round-{numbers[0]}.log')
sys.exit(1 if failed else 0)
PYTHON
