#!/bin/sh
# Builds the documentation site in build/docs/site, every link checked, and serves it:
#
#   sh deploy/docs.sh            # builds, then serves http://127.0.0.1:8000/ until Ctrl-C
#   sh deploy/docs.sh --build    # only builds
#
# Needs python3-venv, and PyPI the first time and when docs/requirements.txt has changed. The pages
# of the programs' flags come from build/release, build/ci or build/wheel, the first that has them.
set -eu
cd "$(dirname "$0")/.."
case "$#:${1:-}" in
  0: | 1:--build) ;;
  *)
    echo "usage: sh deploy/docs.sh [--build]" >&2
    exit 2
    ;;
esac

venv=build/docs/venv
python=${LSSAR_DOCS_PYTHON:-$venv/bin/python}
wanted=$(sha256sum <docs/requirements.txt)
if [ -z "${LSSAR_DOCS_PYTHON:-}" ] &&
  [ "$(cat "$venv/requirements.sha256" 2>/dev/null || true)" != "$wanted" ]; then
  python3 -m venv --clear "$venv"
  "$python" -m pip install --quiet -r docs/requirements.txt
  echo "$wanted" >"$venv/requirements.sha256"
fi
programs=
for build in release ci wheel; do
  bin=build/$build/bin
  if [ -z "$programs" ] && [ -x "$bin/lssar" ] && [ -x "$bin/lssar-server" ]; then
    programs=$bin
  fi
done
"$python" docs/site.py ${programs:+"$programs"}
NO_MKDOCS_2_WARNING=1 "$python" -m mkdocs build --quiet --strict --config-file docs/mkdocs.yml
echo "build/docs/site/index.html"
if [ "${1:-}" != --build ]; then
  echo "http://127.0.0.1:8000/ (Ctrl-C ends)"
  exec "$python" -m http.server 8000 --bind 127.0.0.1 --directory build/docs/site
fi
