#!/bin/sh
# Attacks a fresh lssar-server with everything in SECURITY.md's table, beside a well-behaved client
# whose answers are compared bit for bit. Prints a line for each attack: peak memory above idle,
# latency of health, lost calls, bits after the attack, the end on SIGTERM, and PASS or FAIL.
#
#   sh deploy/attack.sh                 everything, on the bare ports and through the edge, in about
#                                       half an hour on two cores
#   sh deploy/attack.sh --short         rows 1 to 6 and 17, a second each: what ctest runs
#   sh deploy/attack.sh --requests 1000000 --request-seconds 900    a million small requests too
#   sh deploy/attack.sh --only 'rapid reset,HPACK flood' --bare     without HAProxy
#
# Further options: --help. Needs the shipped checkpoint and installs what deploy/packages.sh lists.
# Exit code 0: every target is met; 1: one is not.
set -eu
cd "$(dirname "$0")/.."
. deploy/packages.sh
. deploy/steps.sh

log=build/attack.log
start_log
say "Installing missing Debian packages (deploy/packages.sh)"
logged install_packages build test
say "Building build/ci"
if [ ! -f build/ci/build.ninja ]; then
  logged cmake --preset ci
fi
logged ninja -C build/ci lssar-server broken_files lssar_python_stubs
case " $* " in
  *' --short '* | *' --only '* | *' --help '*) files=0 ;;
  *) files=20000 ;;
esac
say "Attacking (commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(date -u +%F))"
/usr/bin/python3 -B tests/attack/attack.py --build build/ci --broken-files "$files" "$@"
