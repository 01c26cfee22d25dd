#!/bin/sh
# Proves a wheel in a bare Debian that has python3 and pip alone: installs it, serves the shipped
# model, and asks it by `lssar`, by the Python package and by OpenAI's client. Fails if the first
# token comes later than 60 s after `pip install` began. Then another version takes its place, and
# the server runs on a CPU without SSE4, as QEMU emulates it, where qemu-user-static is installed.
#
#   sh deploy/prove-wheel.sh                 # as root; Debian 12, the newest wheel of dist/
#   sh deploy/prove-wheel.sh FILE.whl
#   sh deploy/prove-wheel.sh --suite trixie    # Debian 13
#   sh deploy/prove-wheel.sh --suite bullseye  # Debian 11, whose glibc is too old: both programs
#                                              # and pip must end with a sentence
#
# Needs debootstrap, mount, Debian's mirror and PyPI. The bare system stays in build/prove/SUITE.
set -eu
caller=$PWD
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/prove.log
limit_s=60

suite=bookworm
if [ "${1:-}" = --suite ]; then
  suite=$2
  shift 2
fi
# What is there of the suite's bare system is deleted.
case $suite in
  bookworm | trixie | bullseye) ;;
  *)
    echo "prove-wheel: --suite is \"$suite\"; it must be bookworm, trixie or bullseye" >&2
    exit 2
    ;;
esac
if [ $# -ge 1 ]; then
  wheel=$(from_caller "$1")
else
  wheel=$(ls -t "dist/lssar-$(tree_version)"-*.whl 2>/dev/null | head -n 1)
fi
root=$PWD/build/prove/$suite
if [ ! -f "$wheel" ]; then
  echo "prove-wheel: no wheel${wheel:+ $wheel}: run sh deploy/wheel.sh, or name a file" >&2
  exit 77
fi

at_end() {
  for mounted in dev proc; do
    umount "$root/$mounted" 2>/dev/null || true
  done
}

start_log

make_bare_system "$suite" python3,python3-pip,ca-certificates
rm -rf "$root/prove" "$root/root/.cache/pip" "$root"/usr/local/lib/python3*/dist-packages/*
mkdir -p "$root/prove"
cp "$wheel" "$root/prove/"
cp -R models/zoo/lssar-6m "$root/prove/model"
cp "$(command -v qemu-x86_64-static || echo /dev/null)" "$root/prove/qemu"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"

in_root() {
  env -i PATH="/usr/sbin:$PATH" HOME=/root LANG=C.UTF-8 ${https_proxy:+https_proxy="$https_proxy"} \
    PIP_DEFAULT_TIMEOUT=180 PIP_DISABLE_PIP_VERSION_CHECK=1 chroot "$root" /bin/sh "$@"
}

cat >"$root/prove/fails.sh" <<'END'
# Runs a command that must fail with these words, and shows their line.
fails() {
  words=$1
  shift
  if "$@" >failure.log 2>&1; then echo "this should fail: $*"; exit 1; fi
  grep -m 1 -- "$words" failure.log || { cat failure.log; echo "expected: $words"; exit 1; }
}
END

if [ "$suite" = bullseye ]; then
  cat >"$root/prove/run.sh" <<'END'
set -eu
cd /prove
. ./fails.sh
fails 'not a supported wheel on this platform' pip install ./*.whl
python3 -m zipfile -e ./*.whl unpacked
for program in lssar lssar-server; do
  chmod +x "unpacked/lssar/bin/$program"
  fails 'GLIBC_2.[0-9]*. not found' "unpacked/lssar/bin/$program" --version
done
END
  say "pip install $(basename "$wheel") where glibc is too old"
  in_root /prove/run.sh
  exit 0
fi

cat >"$root/prove/run.sh" <<'END'
set -eu
cd /prove
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PATH=/usr/local/bin:/usr/bin:/bin
server=
trap 'if [ -n "$server" ]; then kill "$server"; wait "$server" || true; fi' EXIT

. ./fails.sh

start=$(date +%s)
pip install --quiet ./*.whl
echo "installed after $(($(date +%s) - start)) s"
lssar serve /prove/model --listen 127.0.0.1:50051 --http-listen 127.0.0.1:8080 >server.log 2>&1 &
server=$!
until lssar info >info.log 2>&1; do
  kill -0 "$server" || { cat server.log; exit 1; }
  [ $(($(date +%s) - start)) -lt 300 ] || { cat server.log; exit 1; }
  sleep 0.2
done
lssar generate 'The old house' --max-tokens 1 --seed 1
seconds=$(($(date +%s) - start))
echo "$seconds" >first_token
echo "first token after $seconds s"

lssar generate 'A number:' --max-tokens 9 --seed 1 --regex '[0-9]{3}' | grep -E '[0-9]{3}'
echo 'How are you?' | lssar chat --max-tokens 20 --seed 1
pip install --quiet openai
python3 - <<'PYTHON'
import openai

client = openai.OpenAI(base_url='http://127.0.0.1:8080/v1', api_key='none', timeout=120)
model = client.models.list().data[0].id
answer = client.chat.completions.create(model=model, max_tokens=10, seed=1, messages=[
    {'role': 'user', 'content': 'How are you?'}])
assert answer.usage.completion_tokens > 0
print('openai:', repr(answer.choices[0].message.content))

from lssar import LLM, Client, SamplingParams
with Client() as client:
    print('client:', repr(client.complete('The old house', max_tokens=5, seed=1)[0].text))
with LLM('/prove/model', max_model_len=512) as llm:
    print('LLM:', repr(llm.generate('The old house', SamplingParams(max_tokens=5, seed=1))[0].text))
PYTHON
echo 'Wrong uses end with a sentence:'
fails 'the port is in use' lssar serve /prove/model --listen 127.0.0.1:50051
fails '^lssar-server: /nowhere: No such file' lssar serve /nowhere --listen 127.0.0.1:0 \
  --http-listen 127.0.0.1:0
fails '^FileNotFoundError' python3 -c "from lssar import LLM; LLM('/nowhere')"
fails 'cannot write to standard output' sh -c 'lssar info >/dev/full'

case $(echo ./*.whl) in
  *+cu*)
    # Found by $ORIGIN, as wheel.sh sets it. A driver is the machine's own.
    package=$(python3 -c 'import lssar; print(lssar.__path__[0])')
    ls "$package"/../nvidia/*/lib/libcublas.so.*
    [ -e /dev/nvidiactl ] || fails 'no NVIDIA driver is installed' lssar serve /prove/model \
      --device cuda --listen 127.0.0.1:0 --http-listen off
    ;;
esac

echo 'Another version takes the place of this one, and gives it back:'
mkdir other
python3 - <<'PYTHON'
import glob
import zipfile

[name] = glob.glob('lssar-*.whl')
version = name.split('-')[1]
with zipfile.ZipFile(name) as old, zipfile.ZipFile(f'other/{name.replace(version, "99")}',
                                                   'w') as new:
    for entry in old.infolist():
        data = old.read(entry)
        if '.dist-info/' in entry.filename:
            entry.filename = entry.filename.replace(version, '99')
            data = data.replace(version.encode(), b'99')
        new.writestr(entry, data)
PYTHON
for wheel in other/*.whl ./*.whl; do
  pip install --quiet "$wheel"
  pip list --format=freeze 2>/dev/null | grep '^lssar'
  lssar info | grep -q model
done
[ "$(ls -d /usr/local/lib/python3*/dist-packages/lssar-*.dist-info | wc -l)" = 1 ]

if [ -s qemu ]; then
  echo 'A CPU without SSE4:'
  kill "$server"
  wait "$server"
  rm model/golden.safetensors  # the self-check would take minutes
  ./qemu -cpu Conroe "$(python3 -c 'import lssar.llm; print(lssar.llm.server_program())')" \
    --model /prove/model --listen 127.0.0.1:50051 --http-listen off --threads 1 >server.log 2>&1 &
  server=$!
  until lssar info >info.log 2>&1; do
    kill -0 "$server" || { cat server.log; exit 1; }
    sleep 0.5
  done
  grep SCALAR info.log
  lssar generate 'The old house' --max-tokens 3 --seed 1
fi
END

say "pip install $(basename "$wheel"), serve, ask"
in_root /prove/run.sh
seconds=$(cat "$root/prove/first_token")
if [ "$seconds" -gt "$limit_s" ]; then
  echo "prove-wheel: the first token came after $seconds s; the limit is $limit_s"
  exit 1
fi
