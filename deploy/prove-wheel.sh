#!/bin/sh
# Proves a wheel in a bare Debian 12 that has python3 and pip alone: installs it, serves the shipped
# model, and asks it by `lssar`, by the Python package and by OpenAI's client. Fails if the first
# token comes later than 60 s after `pip install` began.
#
#   sh deploy/prove-wheel.sh                 # as root; the newest wheel of dist/
#   sh deploy/prove-wheel.sh FILE.whl
#
# Needs debootstrap, mount, Debian's mirror and PyPI. The bare system stays in build/prove/root.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/prove.log
root=$PWD/build/prove/root
limit_s=60

wheel=${1:-$(ls -t dist/lssar-*.whl 2>/dev/null | head -n 1)}
if [ ! -f "$wheel" ]; then
  echo "prove-wheel: no wheel: run sh deploy/wheel.sh, or name a file" >&2
  exit 77
fi

at_end() {
  for mounted in dev proc; do
    umount "$root/$mounted" 2>/dev/null || true
  done
}

start_log

if [ ! -f "$root/ready" ]; then
  say "Making a bare Debian 12 with python3 and pip in build/prove/root"
  command -v debootstrap >/dev/null || logged install_packages image
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Codename: bookworm' \
    'Component: main' 2>/dev/null | head -n 1)
  rm -rf --one-file-system "$root"
  mkdir -p "$root"
  logged debootstrap --variant=minbase --include=python3,python3-pip,ca-certificates bookworm \
    "$root" "${mirror:-http://deb.debian.org/debian}"
  touch "$root/ready"
fi
# As this machine reaches PyPI.
for file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
  if [ -f "$file" ]; then cp -L "$file" "$root$file"; fi
done
rm -rf "$root/prove" "$root/root/.cache/pip" "$root"/usr/local/lib/python3*/dist-packages/*
mkdir -p "$root/prove"
cp "$wheel" "$root/prove/"
cp -R models/zoo/lssar-6m "$root/prove/model"
mount --bind /dev "$root/dev"
mount -t proc proc "$root/proc"

cat >"$root/prove/run.sh" <<'END'
set -eu
cd /prove
export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore PATH=/usr/local/bin:/usr/bin:/bin
server=
trap 'if [ -n "$server" ]; then kill "$server"; wait "$server" || true; fi' EXIT

# Runs a command that must fail with these words, and shows their line.
fails() {
  words=$1
  shift
  if "$@" >failure.log 2>&1; then echo "this should fail: $*"; exit 1; fi
  grep -m 1 -- "$words" failure.log || { cat failure.log; echo "expected: $words"; exit 1; }
}

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
END

say "pip install $(basename "$wheel"), serve, ask"
env -i PATH="/usr/sbin:$PATH" HOME=/root LANG=C.UTF-8 ${https_proxy:+https_proxy="$https_proxy"} \
  PIP_DEFAULT_TIMEOUT=180 PIP_DISABLE_PIP_VERSION_CHECK=1 chroot "$root" /bin/sh /prove/run.sh
seconds=$(cat "$root/prove/first_token")
if [ "$seconds" -gt "$limit_s" ]; then
  echo "prove-wheel: the first token came after $seconds s; the limit is $limit_s"
  exit 1
fi
