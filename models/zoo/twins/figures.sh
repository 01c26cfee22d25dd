#!/bin/sh
# Measures the twins through the server (loss and passkeys at 1K to 16K tokens, tasks of
# lm-evaluation-harness) and draws both in one figure each.
#
#   sh models/zoo/twins/figures.sh [OUT]      results in OUT/comparison.md [default: build/twins]
set -eu
caller=$PWD
cd "$(dirname "$0")/../../.."
. deploy/steps.sh
out=$PWD/build/twins
if [ $# -ge 1 ]; then
  out=$(from_caller "$1")
fi

zoo=$PWD/models/zoo
sh deploy/compare.sh "$out" "$zoo/twins/lssar" "$zoo/twins/softmax" -- \
  --ids "$zoo/lssar-6m/held_out.bin" --lengths 1K,2K,4K,8K,16K --rows 16 --trials 50
