#!/bin/sh
# Trains both kinds of attention on orbits, serves them, and measures their forces.
#
#   sh examples/orbits/run.sh OUT [FLAGS of models/training/orbits/train.py]
#
# Needs PyTorch and numpy (deploy/packages.sh: training), the Python package lssar with matplotlib,
# and pyoperon and sympy from PyPI, for the interpreter that PYTHON names (/usr/bin/python3); and
# lssar-server in build/release/bin, in PATH or in LSSAR's wheel. README.md installs them. Stopped,
# it goes on with the same command.
set -eu
[ $# -ge 1 ] || { echo "usage: sh examples/orbits/run.sh OUT [FLAGS of train.py]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=$1
shift
python=${PYTHON:-/usr/bin/python3}
PATH=$root/build/release/bin:$PATH
export PATH
# What is missing is found now, not after the training.
if ! problem=$("$python" -B -c '
import lssar, matplotlib, numpy, pyoperon, sympy, torch
from lssar._server import server_program
server_program()' 2>&1); then
  echo "run.sh: $(printf '%s\n' "$problem" | tail -n 1). See examples/orbits/README.md" >&2
  exit 1
fi
for kind in lssar softmax; do
  "$python" -B "$root/models/training/orbits/train.py" --out "$out/$kind" \
    --attention "$kind" "$@"
done
"$python" -B "$here/forces.py" "$out/results" "lssar=$out/lssar" "softmax=$out/softmax"
"$python" -B "$here/figure.py" "$out/results/forces.json" "$out/results/forces.svg"
"$python" -B "$here/law.py" "$out/results/magnitudes.json" "$out/results/law.json"
