#!/bin/sh
# Evaluates several checkpoints with deploy/evaluate.sh and puts them beside each other: loss and
# passkeys by length in one figure each, tasks of lm-evaluation-harness in one table.
#
#   sh deploy/compare.sh OUT MODEL_DIR MODEL_DIR...               results in OUT/comparison.md
#   sh deploy/compare.sh OUT NAME=MODEL_DIR...                    names; default: the directories'
#   sh deploy/compare.sh OUT MODEL_DIR... -- --lengths 1K,4K      flags: evaluation/report.py
set -eu
caller=$PWD
cd "$(dirname "$0")/.."
. deploy/steps.sh
root=$PWD

usage() {
  echo "usage: sh deploy/compare.sh OUT [NAME=]MODEL_DIR... [-- FLAGS of" \
    "deploy/evaluation/report.py]" >&2
  exit 2
}

refuse() {
  echo "compare.sh: $*" >&2
  exit 2
}

[ $# -ge 2 ] || usage
out=$(from_caller "$1")
shift

# NAME=PATH, one a line, in $models; the flags stay in "$@". Every name and every directory once:
# a directory of results has one checkpoint's, and no checkpoint is compared with itself.
models=
names=
paths=
while [ $# -ge 1 ] && [ "$1" != -- ]; do
  name=
  path=$1
  if [ ! -d "$(from_caller "$path")" ]; then
    case $path in
      *=*)
        name=${path%%=*}
        path=${path#*=}
        ;;
    esac
  fi
  path=$(cd "$(from_caller "$path")" 2>/dev/null && pwd -P) ||
    refuse "$1: there is no such directory"
  [ -f "$path/config.json" ] ||
    refuse "$path has no config.json: give the directory of a checkpoint"
  [ -n "$name" ] || name=$(basename "$path")
  case $name in
    */* | .*) refuse "the name '$name' has a slash or begins with a dot" ;;
  esac
  if printf '%s' "$names" | grep -qxF -- "$name"; then
    refuse "two checkpoints are called $name: give NAME=MODEL_DIR for one of them"
  fi
  if printf '%s' "$paths" | grep -qxF -- "$path"; then
    refuse "$path is given twice"
  fi
  names="$names$name
"
  paths="$paths$path
"
  models="$models$name=$path
"
  shift
done
[ $# -eq 0 ] || shift

IFS='
'
measured=
for model in $models; do
  directory=$out/${model%%=*}
  # Paths in the flags are the caller's.
  (cd "$caller" && sh "$root/deploy/evaluate.sh" "${model#*=}" "$directory" \
    --steps tasks,loss,passkey "$@")
  measured="$measured$directory
"
done
# shellcheck disable=SC2086  # one directory a line
PYTHONPATH=$root/deploy/evaluation "$root/build/evaluation-venv/bin/python" -B \
  deploy/evaluation/compare.py "$out" $measured
