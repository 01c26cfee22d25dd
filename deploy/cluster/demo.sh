#!/bin/sh
# Installs missing Debian 12 packages, builds, and starts three servers behind HAProxy with
# Prometheus. Shows prefix affinity, a drain and a kill in a minute of output.
#
#   sh deploy/cluster/demo.sh
set -eu
cd "$(dirname "$0")/../.."
if [ "$#" -ne 0 ]; then
  echo "usage: sh deploy/cluster/demo.sh" >&2
  exit 2
fi
. deploy/packages.sh
. deploy/steps.sh

log=build/cluster-demo.log
start_log

say "1. Install missing Debian packages (deploy/packages.sh)"
logged install_packages build cluster

say "2. Build into build/release: minutes the first time, seconds afterwards"
build_xgrammar
build_release
logged /usr/bin/python3 -B clients/python/generate_stubs.py build/release/python

# Debian's Python, which has Debian's grpcio.
PYTHONPATH=build/release/python:clients/python PATH="$PWD/build/release/bin:/usr/sbin:$PATH" \
  /usr/bin/python3 -B deploy/cluster/demo.py build/release/bin/lssar-server
