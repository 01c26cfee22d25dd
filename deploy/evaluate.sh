#!/bin/sh
# Installs missing Debian 12 packages, builds, and evaluates a checkpoint: lm-eval tasks, loss and
# passkeys by length, statistics of attention, figures. Writes report.md, report.html and a JSON
# file beside every figure. Runs again where it stopped: finished steps are kept.
#
#   sh deploy/evaluate.sh models/zoo/lssar-6m               results in build/evaluation/lssar-6m-*
#   sh deploy/evaluate.sh MODEL_DIR OUT --text book.txt     flags after OUT: evaluation/report.py
set -eu
caller=$PWD
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

usage() {
  echo "usage: sh deploy/evaluate.sh MODEL_DIR [OUT [FLAGS of deploy/evaluation/report.py]]" >&2
  exit 2
}

[ $# -ge 1 ] || usage
model=$(from_caller "$1")
shift
if [ ! -f "$model/config.json" ]; then
  echo "$model has no config.json: give the directory of a checkpoint" >&2
  exit 2
fi
root=$PWD
# The path is a part of the name: two checkpoints called `final` have two folders.
model=$(cd "$model" && pwd -P)
out=$root/build/evaluation/$(basename "$model")-$(printf '%s' "$model" | sha256sum | cut -c1-8)
if [ $# -ge 1 ]; then
  out=$(from_caller "$1")
  shift
fi

# Its own arguments and files are checked before anything is installed or built.
(cd "$caller" && /usr/bin/python3 -B "$root/deploy/evaluation/report.py" "$model" "$out" "$@" \
  --check)

log=$root/build/evaluate.log
venv=$root/build/evaluation-venv
start_log

say "Installing missing Debian packages (deploy/packages.sh)"
logged install_packages build evaluation

say "Building lssar and lssar-server into build/release"
build_xgrammar
build_release

# 800 MB from PyPI, once; the client again whenever it changes.
say "Installing lm-eval, matplotlib and the Python client into $venv"
wanted=$(sha256sum <deploy/evaluation/requirements.txt)
if [ "$(cat "$venv/requirements.sha256" 2>/dev/null || true)" != "$wanted" ]; then
  logged /usr/bin/python3 -m venv --clear "$venv"
  logged "$venv/bin/pip" install -q -r deploy/evaluation/requirements.txt
  echo "$wanted" >"$venv/requirements.sha256"
fi
logged "$venv/bin/pip" install -q --no-build-isolation --no-deps --force-reinstall ./clients/python

say "Evaluating $model"
cd "$caller"
LSSAR_CLI=$root/build/release/bin/lssar LSSAR_SERVER=$root/build/release/bin/lssar-server \
  "$venv/bin/python" -B "$root/deploy/evaluation/report.py" "$model" "$out" "$@"
