#!/bin/sh
# Trains both kinds of attention on orbits, serves them, and measures their forces.
#
#   sh examples/orbits/run.sh OUT [FLAGS of models/training/orbits/train.py]
#
# Needs PyTorch and numpy for /usr/bin/python3 (deploy/packages.sh: training), the Python package
# lssar and lssar-server in PATH or in LSSAR's wheel, and pyoperon from PyPI for law.py. Stopped, it
# goes on with the same command.
set -eu
[ $# -ge 1 ] || { echo "usage: sh examples/orbits/run.sh OUT [FLAGS of train.py]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
python=${PYTHON:-/usr/bin/python3}
for kind in lssar softmax; do
  "$python" -B "$here/../../models/training/orbits/train.py" --out "$out/$kind" \
    --attention "$kind" "$@"
done
"$python" -B "$here/forces.py" "$out/results" "lssar=$out/lssar" "softmax=$out/softmax"
"$python" -B "$here/figure.py" "$out/results/forces.json" "$out/results/forces.svg"
"$python" -B "$here/law.py" "$out/results/magnitudes.json" "$out/results/law.json"
