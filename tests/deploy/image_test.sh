#!/bin/sh
# Builds the container image with the shipped checkpoint inside, starts it as in production, and
# generates through it. Uses docker; if no Docker engine answers, uses buildah (as root) on a base
# image that debootstrap makes from the mirror that apt uses.
#
#   sh tests/deploy/image_test.sh
#   sh tests/deploy/image_test.sh --quick   # by buildah: nothing is compiled or fetched
#
# --quick packs the programs of the build LSSAR_BUILD (default build/ci) in place of the stage
# `build`, and makes the base image of this machine's own packages. Every other line of the
# Dockerfile runs.
set -eu
cd "$(dirname "$0")/../.."
. deploy/packages.sh

quick=
case "$#:${1:-}" in
  0:) ;;
  1:--quick) quick=yes ;;
  *)
    echo "usage: sh tests/deploy/image_test.sh [--quick]" >&2
    exit 2
    ;;
esac

model=models/zoo/lssar-6m
max_size_mb=150
# The quick form's images take 1 GB and many copies, which cost ten times as much on a disk.
memory=/dev/shm
if [ -n "$quick" ] && [ -z "${TMPDIR:-}" ] && ! findmnt -no OPTIONS $memory | grep -q noexec &&
  [ "$(df --output=avail $memory | tail -n 1)" -ge 4194304 ]; then
  TMPDIR=$memory
fi
scratch=$(mktemp -d "${TMPDIR:-/tmp}/lssar-image.XXXXXX")
image=lssar-image-test:$$
container=
server_pid=
engine=

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

# Separate storage, deleted at the end; the user's images are not touched.
in_buildah() {
  TMPDIR=$scratch buildah --root "$scratch/storage" --runroot "$scratch/run" \
    --storage-driver vfs "$@"
}

at_exit() {
  status=$?
  trap - EXIT
  if [ -n "$server_pid" ]; then
    kill -KILL "$server_pid" 2>/dev/null || true
  fi
  if [ "$engine" = docker ]; then
    if [ -n "$container" ]; then
      docker rm --force "$container" >/dev/null || true
    fi
    docker rmi --force "$image" >/dev/null 2>&1 || true
  fi
  rm -rf --one-file-system "$scratch"
  exit "$status"
}
trap at_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# debian:bookworm-slim for buildah: a minimal Debian 12 with this machine's apt configuration.
make_base_image() {
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Codename: bookworm' \
    'Component: main' 2>/dev/null | head -n 1)
  debootstrap --variant=minbase bookworm "$scratch/base" "${mirror:-http://deb.debian.org/debian}" \
    >"$scratch/debootstrap.log" 2>&1 || {
    tail -n 20 "$scratch/debootstrap.log"
    fail "debootstrap from ${mirror:-http://deb.debian.org/debian}"
  }
  # What the published image leaves out.
  rm -rf "$scratch/base/var/cache/apt/archives" "$scratch"/base/var/lib/apt/lists/*
  for folder in doc info locale man; do
    find "$scratch/base/usr/share/$folder" ! -type d -delete
  done
  printf 'path-exclude /usr/share/%s/*\n' doc info locale man \
    >"$scratch/base/etc/dpkg/dpkg.cfg.d/slim"
  apt-config dump 2>/dev/null | grep -i '^Acquire::https\?::Proxy' \
    >"$scratch/base/etc/apt/apt.conf.d/90proxy" || true
  tar -C "$scratch/base" -cf "$scratch/base.tar" .  # ADD keeps file owners only for tar archives
  commit_image "$scratch/base.tar" / docker.io/library/debian:bookworm-slim
  rm -rf --one-file-system "$scratch/base" "$scratch/base.tar"
}

# The same of the packages that this machine has: those that Debian requires, and those that the
# image installs, so that its command has nothing to fetch.
make_quick_base_image() {
  apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
    --no-replaces --no-enhances --installed $(packages_of run) \
    $(dpkg-query -W -f '${Priority} ${Package}\n' | sed -n 's/^required //p') |
    grep '^[a-z0-9]' | sed 's/:.*//' | sort -u >"$scratch/packages"
  mkdir -p "$scratch/base/var/lib/dpkg/info" "$scratch/base/var/lib/dpkg/updates" \
    "$scratch/base/etc"
  packages=$(cat "$scratch/packages")  # some are names that others provide
  dpkg-query -s $packages >"$scratch/base/var/lib/dpkg/status" 2>/dev/null || true
  for package in $packages; do
    for list in "/var/lib/dpkg/info/$package.list" "/var/lib/dpkg/info/$package:"*.list; do
      if [ -e "$list" ]; then echo "$list"; fi
    done
  done | xargs cp -t "$scratch/base/var/lib/dpkg/info/"
  { dpkg -L $packages 2>/dev/null || true; } | sed -E 's#^/##; s#^(bin|sbin|lib|lib64)/#usr/\1/#' |
    grep -v -e '^\.\?$' -e '^usr/share/\(doc\|man\|locale\)/' | sort -u |
    while read -r file; do
      if [ -e "/$file" ] || [ -L "/$file" ]; then echo "$file"; fi
    done >"$scratch/files"
  cp /usr/share/base-passwd/passwd.master "$scratch/base/etc/passwd"
  cp /usr/share/base-passwd/group.master "$scratch/base/etc/group"
  cp /etc/ld.so.cache "$scratch/base/etc/"
  tar -C / --no-recursion -cf "$scratch/base.tar" -T "$scratch/files"
  tar -C "$scratch/base" -rf "$scratch/base.tar" etc/passwd etc/group etc/ld.so.cache var/lib/dpkg
  commit_image "$scratch/base.tar" / docker.io/library/debian:bookworm-slim
  rm -rf --one-file-system "$scratch/base" "$scratch/base.tar"
}

# commit_image SOURCE FOLDER NAME: an image with the content of SOURCE in FOLDER.
commit_image() {
  commit_container=$(in_buildah from scratch)
  in_buildah add -q "$commit_container" "$1" "$2" >/dev/null
  in_buildah config --cmd /bin/sh "$commit_container"
  in_buildah commit -q "$commit_container" "$3" >/dev/null
  in_buildah rm "$commit_container" >/dev/null
}

# The Dockerfile without its stage `build`, whose package comes from an image.
build_quick_image() {
  build=${LSSAR_BUILD:-build/ci}
  PYTHONPATH=clients/python /usr/bin/python3 -B deploy/debian/manual.py "$build/bin" "$build/manual"
  cpack --config "$build/CPackConfig.cmake" -D CPACK_DEBIAN_COMPRESSION_TYPE=none \
    -B "$scratch/cpack" >"$scratch/cpack.log" 2>&1 || {
    cat "$scratch/cpack.log"
    fail "cpack"
  }
  mkdir "$scratch/package"
  mv "$scratch"/cpack/lssar_*.deb "$scratch/package/"
  commit_image "$scratch/package" /package localhost/lssar-package
  awk '/^FROM/ { skip = / AS build$/ }
       !skip { sub(/--from=build /, "--from=localhost/lssar-package "); print }' \
    deploy/Dockerfile >"$scratch/Dockerfile"
  make_quick_base_image
  in_buildah bud --isolation chroot --pull-never --format docker -f "$scratch/Dockerfile" \
    --build-arg "MODEL=$model" -t "$image" .
}

build_image() {
  if [ -n "$quick" ]; then
    build_quick_image
  elif [ "$engine" = docker ]; then
    docker build -f deploy/Dockerfile --build-arg "MODEL=$model" -t "$image" .
  else
    make_base_image
    in_buildah bud --isolation chroot --network host --pull-never --format docker \
      -f deploy/Dockerfile --build-arg "MODEL=$model" -t "$image" .
  fi
}

in_container() {
  if [ "$engine" = docker ]; then
    docker exec "$container" "$@"
  else
    in_buildah run --isolation chroot --network host "$container" -- "$@"
  fi
}

start_server() {
  if [ "$engine" = docker ]; then
    container=$(docker run --detach --read-only --cap-drop ALL "$image")
    return
  fi
  # The container shares this machine's network: a port that is free. Pid 1 is not the server.
  container=$(in_buildah from --pull-never "$image")
  entrypoint=$(in_buildah inspect --type image --format '{{.Docker.Config.Entrypoint}}' "$image" |
    tr -d '[]')
  in_container sh -c 'echo $$ >/tmp/server.pid && exec "$@"' sh $entrypoint \
    --listen 0.0.0.0:0 --http-listen 127.0.0.1:0 >"$scratch/server.log" 2>&1 </dev/null &
  server_pid=$!
}

server_log() {
  if [ "$engine" = docker ]; then
    docker logs "$container" 2>&1
  else
    cat "$scratch/server.log"
  fi
}

wait_for_server() {
  waited=0
  while :; do
    port=$(server_log | sed -n 's/.*"event":"loading".*"address":"[0-9.]*:\([0-9]*\)".*/\1/p')
    address=127.0.0.1:$port
    if [ -n "$port" ] && in_container lssar info --server "$address" >/dev/null 2>&1; then
      return
    fi
    waited=$((waited + 1))
    if [ "$waited" -ge 60 ]; then
      server_log | tail -n 30
      fail "the server in the container does not answer at $address"
    fi
    sleep 1
  done
}

# Sends SIGTERM and prints the server's exit code.
stop_server() {
  if [ "$engine" = docker ]; then
    docker stop --time 40 "$container" >/dev/null
    docker inspect --format '{{.State.ExitCode}}' "$container"
  else
    in_container sh -c 'kill -TERM "$(cat /tmp/server.pid)"'
  fi
}

if [ -n "$quick" ] && command -v buildah >/dev/null 2>&1 && [ "$(id -u)" -eq 0 ]; then
  engine=buildah
elif [ -n "$quick" ]; then
  echo "skipped: the quick form needs buildah, and root to make the base image"
  exit 0
elif docker info >/dev/null 2>&1; then
  engine=docker
elif ! command -v buildah >/dev/null 2>&1 || ! command -v debootstrap >/dev/null 2>&1; then
  fail "no docker engine answers here, and buildah or debootstrap is not installed"
elif [ "$(id -u)" -ne 0 ]; then
  fail "no docker engine answers here, and buildah needs root to make the base image"
else
  engine=buildah
fi

echo "building with $engine"
build_image
start_server
wait_for_server

echo "the image"
wrong=$(in_container sh -c '
  [ "$(id -u)" -ne 0 ] || echo "the container runs as root"
  for program in cc c++ gcc g++ clang as ld ld.lld make cmake ninja protoc; do
    command -v "$program" && echo "is a compiler"
  done
  for program in /usr/bin/lssar-server /usr/bin/lssar; do
    ldd "$program" | grep "not found" && echo "$program lacks a library"
  done
  dpkg-query -W -f "\${Package}\n" | grep -e "-dev$" && echo "is a development package"
  exit 0')
[ -z "$wrong" ] || fail "$wrong"

# The size of the image's files, without the checkpoint. The quick form's base is not Debian's
# image.
if [ -z "$quick" ]; then
  size_mb=$(in_container sh -c 'du -sxm --exclude=/models / 2>/dev/null | cut -f 1')
  echo "$size_mb MB"
  if [ "$size_mb" -ge "$max_size_mb" ]; then
    in_container sh -c 'du -xm / 2>/dev/null | sort -rn | head -n 40'
    fail "the image has $size_mb MB; the limit is $max_size_mb"
  fi
fi

echo "the health check"
in_container lssar-server --config /etc/lssar/server.toml --check-health --http-listen off \
  --listen "$address" || fail "lssar-server --check-health finds no health at $address"

echo "a generation"
text=$(in_container lssar generate --server "$address" "The capital of France is" --max-tokens 20 \
  --seed 1)
echo "$text"
[ -n "$text" ] || fail "the generation is empty"
again=$(in_container lssar generate --server "$address" "The capital of France is" --max-tokens 20 \
  --seed 1)
[ "$text" = "$again" ] || fail "the same seed gave another text: $again"

echo "the end"
exit_code=$(stop_server)
if [ "$engine" = buildah ]; then
  exit_code=0
  wait "$server_pid" || exit_code=$?
  server_pid=
fi
if [ "$exit_code" -ne 0 ]; then
  server_log | tail -n 30
  fail "after SIGTERM the server's exit code is $exit_code"
fi
echo "passed"
