#!/bin/sh
# Evaluates several checkpoints with deploy/evaluate.sh and puts them beside each other: loss and
# passkeys by length in one figure each, tasks of lm-evaluation-harness in one table.
#
#   sh deploy/compare.sh OUT MODEL_DIR MODEL_DIR...               results in OUT/comparison.md
#   sh deploy/compare.sh OUT MODEL_DIR... -- --lengths 1K,4K      flags: evaluation/report.py
set -eu
caller=$PWD
cd "$(dirname "$0")/.."
. deploy/steps.sh
root=$PWD

usage() {
  echo "usage: sh deploy/compare.sh OUT MODEL_DIR... [-- FLAGS of deploy/evaluation/report.py]" >&2
  exit 2
}

[ $# -ge 2 ] || usage
out=$(from_caller "$1")
shift

# The models' paths in $models, one a line; the flags stay in "$@".
models=
while [ $# -ge 1 ] && [ "$1" != -- ]; do
  models="$models$(from_caller "$1")
"
  shift
done
[ $# -eq 0 ] || shift

IFS='
'
measured=
for model in $models; do
  directory=$out/$(basename "$model")
  sh deploy/evaluate.sh "$model" "$directory" --steps tasks,loss,passkey "$@"
  measured="$measured$directory
"
done
# shellcheck disable=SC2086  # one directory a line
PYTHONPATH=$root/deploy/evaluation "$root/build/evaluation-venv/bin/python" -B \
  deploy/evaluation/compare.py "$out" $measured
