#!/bin/sh
# Builds the Debian package with lssar-server, lssar, their man pages and completions, a service and
# its settings:
#
#   sh deploy/package.sh                     # -> dist/lssar_VERSION_ARCHITECTURE.deb
#   apt install ./dist/lssar_*.deb
#   editor /etc/lssar/server.toml            # model = "..."
#   systemctl enable --now lssar-server
#
#   sh deploy/package.sh --cuda              # lssar-cuda: with the GPU backend; needs nvcc
#   sh deploy/package.sh --prove             # and proves it in a bare Debian 12, as root
#   sh deploy/package.sh --to FOLDER         # for the image: takes the package of this version that
#                                            # is in dist/, unless a source is newer, or builds it
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/package.log
device=cpu
name=lssar
out=dist
prove=
while [ $# -gt 0 ]; do
  case $1 in
    --cuda)
      device=cuda
      name=lssar-cuda
      ;;
    --prove) prove=yes ;;
    --to)
      out=${2:?--to needs a folder}
      shift
      ;;
    *)
      echo "usage: sh deploy/package.sh [--cuda] [--prove] [--to FOLDER]" >&2
      exit 2
      ;;
  esac
  shift
done
package=${name}_$(tree_version)_$(dpkg --print-architecture).deb

start_log
mkdir -p "$out"
if [ "$out" != dist ] && [ -f "dist/$package" ]; then
  newer=$(find CMake* base clients cmake deploy/debian deploy/xgrammar* kernels models proto \
    runtime server -path models/zoo -prune -o -path models/training -prune -o -type f \
    ! -name '*.md' ! -name '*.pyc' -newer "dist/$package" -print -quit)
  if [ -z "$newer" ]; then
    say "Taking dist/$package"
    cp "dist/$package" "$out/"
    exit 0
  fi
  say "$newer is newer than dist/$package"
fi

say "Installing missing Debian packages (deploy/packages.sh)"
logged install_packages build package

say "Building the programs and their manual in build/$device"
build_portable "$device" lssar_manual

say "Packing"
logged cpack --config "build/$device/CPackConfig.cmake" -B build/package
cp "build/package/$package" "$out/"
ls -l "$out/$package"
if [ -n "$prove" ]; then
  sh deploy/prove-package.sh "$out/$package"
fi
