#!/bin/sh
# Measures smollm2-lssar beside its softmax teacher through the server: loss and passkeys by length,
# tasks of lm-evaluation-harness, 20 questions with both answers.
#
#   sh models/zoo/smollm2-lssar/evaluate.sh [TEXT [OUT [FLAGS]]]   FLAGS: evaluation/report.py
#
# TEXT is a UTF-8 file; without it, or as -, the held-out articles of lssar-6m. Results: OUT/
# comparison.md and OUT/answers.md [default: build/smollm2]. Runs again where it stopped.
set -eu
caller=$PWD
cd "$(dirname "$0")/../../.."
. deploy/steps.sh
root=$PWD
text=${1:--}
out=$root/build/smollm2
[ $# -lt 2 ] || out=$(from_caller "$2")
[ $# -lt 2 ] || shift
[ $# -lt 1 ] || shift

sh deploy/get-model.sh --teacher
student=$root/build/models/smollm2-lssar
teacher=$root/build/models/smollm2-softmax
python=$root/build/evaluation-venv/bin/python
questions=$root/models/zoo/smollm2-lssar/questions.py
mkdir -p "$out"
if [ "$text" = - ]; then
  # deploy/evaluate.sh installs the Python client; the shortest evaluation does that first.
  [ -x "$python" ] || sh deploy/evaluate.sh models/zoo/lssar-6m "$out/lssar-6m" --steps loss
  PATH=$root/build/release/bin:$PATH "$python" -B "$questions" decode models/zoo/lssar-6m \
    >"$out/held_out.txt"
  text=$out/held_out.txt
else
  text=$(from_caller "$text")
fi
sh deploy/compare.sh "$out" "$student" "$teacher" -- \
  --text "$text" --lengths 512,1K,2K,4K,8K,16K,32K --trials 50 "$@"
PATH=$root/build/release/bin:$PATH "$python" -B "$questions" ask "$student" "$teacher" \
  >"$out/answers.md"
echo "$out/answers.md"
