#!/bin/sh
# Builds the Debian package with lssar-server, lssar, their man pages and completions, a service and
# its settings:
#
#   sh deploy/package.sh                     # -> dist/lssar_VERSION_ARCHITECTURE.deb
#   apt install ./dist/lssar_*.deb
#   editor /etc/lssar/server.toml            # model = "..."
#   systemctl enable --now lssar-server
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/package.log
start_log

say "Installing missing Debian packages (deploy/packages.sh)"
logged install_packages build

say "Building the programs and their manual in build/release"
logged cmake --preset release -DLSSAR_BUILD_TESTS=OFF
logged cmake --build --preset release --target lssar_manual

say "Packing"
logged cpack --config build/release/CPackConfig.cmake -B build/package
mkdir -p dist
cp build/package/lssar_*.deb dist/
ls -l dist/lssar_*.deb
