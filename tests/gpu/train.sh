#!/bin/sh
# Trains a model and its softmax twin on another machine, which has a GPU, PyTorch and NumPy, but
# neither this repository nor a network.
#
#   here   sh tests/gpu/train.sh pack RUNS/data PARTS   recipe and ids (of prepare.py) in small
#                                                       parts: PARTS/part.*
#   there  sh PARTS/train.sh take PARTS WORK            each time parts arrive
#          sh PARTS/train.sh start WORK [FLAG ...]      run.py in a session of its own, with these
#                                                       flags or --preset gpu-25min; resumes
#          sh PARTS/train.sh show WORK                  whether it runs, and its progress
#          sh PARTS/train.sh stop WORK                  saves its state and ends
#          sh PARTS/train.sh collect WORK RESULTS       model, card, figure, logs: RESULTS/part.*
#   here   cat RESULTS/part.* | tar -xJ
#
# On one machine: sh tests/gpu/train.sh all RUNS/data WORK [FLAG ...]
#
# PART_MIB: size of a part (56). PYTHON: the interpreter (python3). ALLOW_CPU=1: start without one.
set -eu

python=${PYTHON:-python3}

fail() {
  echo "train.sh: $*" >&2
  exit 1
}

# Splits a tar from stdin into parts with checksums, in an empty folder.
split_into() {
  mkdir -p "$1"
  rm -f "$1"/part.* "$1/SHA256SUMS"
  xz -T0 -3 | split -b "${PART_MIB:-56}m" -d - "$1/part."
  (cd "$1" && sha256sum part.* >SHA256SUMS && ls -l part.*)
}

pack() {
  recipe=$(cd "$(dirname "$0")/../../models/training" && pwd)
  [ -f "$1/prepare.json" ] || fail "$1 holds no prepare.json: prepare.py writes it"
  staged=$(mktemp -d)
  mkdir -p "$staged/recipe" "$staged/runs/data"
  cp "$recipe"/*.py "$staged/recipe/"
  for file in text.bin dialogs.bin val.bin tokenizer.model passkey.json prepare.json; do
    ln -s "$(cd "$1" && pwd)/$file" "$staged/runs/data/$file"
  done
  tar -ch -C "$staged" recipe runs | split_into "$2"
  rm -r "$staged"
  cp "$0" "$2/train.sh"
}

take() {
  mkdir -p "$2/parts"
  cp "$1/SHA256SUMS" "$2/parts/"
  for part in "$1"/part.*; do
    [ -f "$part" ] && cp "$part" "$2/parts/"
  done
  if ! (cd "$2/parts" && sha256sum --check --quiet SHA256SUMS); then
    echo "parts are still to come"
    return 0
  fi
  # Python unpacks xz: the machine may have no xz program.
  cat "$2"/parts/part.* | (cd "$2" && "$python" -c \
    'import sys, tarfile; tarfile.open(fileobj=sys.stdin.buffer, mode="r|xz").extractall()')
  rm -r "$2/parts"
  echo "all parts are here: sh train.sh start $2"
}

is_running() {
  [ -f "$1/pid" ] && kill -0 "$(cat "$1/pid")" 2>/dev/null
}

start() {
  work=$1
  shift
  [ -d "$work/recipe" ] || fail "$work holds no recipe: take the parts first"
  is_running "$work" && fail "it is running: process $(cat "$work/pid")"
  "$python" -c 'import numpy, torch' || fail "$python lacks PyTorch or NumPy"
  if [ "${ALLOW_CPU:-}" != 1 ]; then
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
      fail "PyTorch sees no GPU here (ALLOW_CPU=1 starts all the same)"
  fi
  [ $# -gt 0 ] || set -- --preset gpu-25min
  # In its own process session, so that it outlives the call that started it.
  PYTHONUNBUFFERED=1 setsid "$python" -B "$work/recipe/run.py" --out "$work/runs" "$@" \
    >>"$work/log" 2>&1 </dev/null &
  echo $! >"$work/pid"
  echo "process $!, its output in $work/log"
}

show() {
  if is_running "$1"; then
    echo "running: process $(cat "$1/pid")"
  else
    echo "not running"
  fi
  tail -n 5 "$1/log"
}

stop() {
  if is_running "$1"; then
    kill -TERM "$(cat "$1/pid")"
  fi
}

collect() {
  [ -d "$1/runs/model" ] || fail "$1 holds no model yet"
  tar -c -C "$1" --exclude='*.pt' --exclude='*.tmp' --exclude=data log runs |
    PART_MIB=${PART_MIB:-15} split_into "$2"
}

command=${1:-}
[ $# -gt 0 ] && shift
case $command in
  pack | take | collect) [ $# -eq 2 ] || fail "$command needs two folders" ;;
  start | show | stop) [ $# -ge 1 ] || fail "$command needs a folder" ;;
  all) [ $# -ge 2 ] || fail "all needs two folders" ;;
  *) fail "one of pack, take, start, show, stop, collect, all; $0 begins with how" ;;
esac

if [ "$command" = all ]; then
  prepared=$1
  work=$2
  shift 2
  pack "$prepared" "$work/packed"
  take "$work/packed" "$work"
  start "$work" "$@"
else
  "$command" "$@"
fi
