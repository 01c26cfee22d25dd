#!/bin/sh
# Says which lines of the fuzzed sources no input reaches: of the corpora here and of what run.sh
# has found so far.
#
#   sh tests/fuzz/coverage.sh
#
# Prints a table and writes the sources with counts to build/fuzz-coverage/html. Needs Debian's
# llvm-16, which deploy/packages.sh does not install.
set -eu
cd "$(dirname "$0")/../.."
for tool in llvm-profdata-16 llvm-cov-16; do
  if ! command -v "$tool" >/dev/null; then
    echo "$tool is missing: apt-get install llvm-16" >&2
    exit 1
  fi
done
if [ ! -f build/ci/build.ninja ]; then
  cmake --preset ci >/dev/null
fi
ninja -C build/ci lssar-fuzz-coverage >/dev/null
folder=build/fuzz-coverage
rm -rf "$folder"
mkdir -p "$folder/bin"
for target in $(LLVM_PROFILE_FILE=/dev/null build/ci/bin/lssar-fuzz-coverage --list); do
  ln -s "$PWD/build/ci/bin/lssar-fuzz-coverage" "$folder/bin/$target"
  corpora=tests/fuzz/corpus/$target
  if [ -d "build/fuzz/$target/corpus" ]; then
    corpora="build/fuzz/$target/corpus $corpora"
  fi
  # shellcheck disable=SC2086  # two folders
  LLVM_PROFILE_FILE=$folder/$target.profraw "$folder/bin/$target" -runs=0 $corpora \
    >"$folder/$target.log" 2>&1 || echo "$target: see $folder/$target.log" >&2
done
llvm-profdata-16 merge -o "$folder/profile" "$folder"/*.profraw
report() {
  command=$1
  shift
  llvm-cov-16 "$command" build/ci/bin/lssar-fuzz-coverage "-instr-profile=$folder/profile" \
    "-ignore-filename-regex=tests/|\\.h$|^/usr" "$@"
}
report show -format=html "-output-dir=$folder/html" 2>/dev/null
report report 2>/dev/null | awk 'NF > 10 { printf "%-44s %6s lines, %5s not reached: %s\n",
  $1, $8, $9, $10 }' | sed 1d
