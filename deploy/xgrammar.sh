#!/bin/sh
# Builds xgrammar, the library of structured output (response_format), as a static library from its
# source on PyPI, which is pinned by hash. Once a machine: the prefix is outside the tree, and its
# name has the hash of what it was built from. A minute or two on two cores.
#
#   sh deploy/xgrammar.sh            builds it where there is none; CMake then finds it
#   sh deploy/xgrammar.sh --prefix   prints where it is, or will be
#
# LSSAR_XGRAMMAR_PREFIX names another prefix. Exit code 3: PyPI cannot be reached; the server builds
# without xgrammar, too.
set -eu
cd "$(dirname "$0")/.."
. deploy/steps.sh

inputs="deploy/xgrammar.sh deploy/xgrammar/CMakeLists.txt deploy/xgrammar/requirements.txt \
deploy/xgrammar/work_limit.h"
key=$(cat $inputs | sha256sum | cut -c1-12)
prefix=${LSSAR_XGRAMMAR_PREFIX:-${XDG_CACHE_HOME:-${HOME:-/var}/.cache}/lssar/xgrammar-$key}
if [ "${1:-}" = --prefix ]; then
  echo "$prefix"
  exit 0
fi
if [ -f "$prefix/lib/libxgrammar.a" ]; then
  echo "xgrammar is in $prefix"
  exit 0
fi
if [ -e "$prefix" ] && [ -n "$(ls -A "$prefix")" ]; then
  echo "LSSAR_XGRAMMAR_PREFIX: $prefix has other files; it must be new or empty" >&2
  exit 2
fi

work=$(mktemp -d)
part=$work
trap 'rm -rf "$work" "$part"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
/usr/bin/python3 -m venv "$work/venv"
if ! "$work/venv/bin/pip" --retries 1 --timeout 15 download -q --no-deps --no-binary xgrammar \
  --require-hashes -r deploy/xgrammar/requirements.txt -d "$work" >"$work/pip.log" 2>&1; then
  cat "$work/pip.log"
  echo "pip got no xgrammar from PyPI"
  if is_unreachable "$work/pip.log"; then exit 3; fi
  exit 1
fi
mkdir "$work/source"
tar -xzf "$work"/xgrammar-*.tar.gz -C "$work/source" --strip-components 1

# change FILE EXPRESSION: sed, which must change something.
change() {
  cp "$work/source/cpp/$1" "$work/before"
  sed -i "$2" "$work/source/cpp/$1"
  if cmp -s "$work/before" "$work/source/cpp/$1"; then
    echo "deploy/xgrammar.sh: cpp/$1 is not as expected"
    exit 1
  fi
}
# The loops whose length follows the grammar, not its source, begin with a call of CountStep.
cp deploy/xgrammar/work_limit.h "$work/source/include/xgrammar/"
for file in earley_parser.cc fsm.cc grammar_functor.h grammar_parser.cc json_schema_converter.cc \
  grammar_matcher.cc; do
  change $file '0,/^#include </s//#include <xgrammar\/work_limit.h>\n\n&/'
done
for file in earley_parser.cc grammar_matcher.cc; do
  change $file 's/^    const auto state = .*_queue_\.front().*;$/    CountStep();\n&/'
done
change earley_parser.cc 's/^bool EarleyParser::Advance(const .* {$/&\n  CountStep();/'
change earley_parser.cc 's/^void EarleyParser::Scan(const .* {$/&\n  CountStep();/'
for loop in 'for (.* : parent_states_map)' '\[&\](const auto& s)'; do
  change earley_parser.cc "s/^ *$loop {\$/&\\n    CountStep();/"
done
for loop in 'while (!queue\.empty())' 'while (changed)' 'while (!working_set\.empty())' \
  'while (now_process < .*' 'for (const auto& interval : intervals)'; do
  change fsm.cc "s/^  *$loop {\$/&\\n    CountStep();/"
done
change grammar_functor.h 's/^  virtual T VisitExpr(const Gram.* {$/&\n    CountStep();/'
change grammar_parser.cc 's/^int32_t EBNFParser::ParseElement() {$/&\n  CountStep();/'
change json_schema_converter.cc 's/^  std::string cache_key = Comp.*;$/  CountStep();\n&/'
# A string of bounded length had control characters in it; a pattern that its automaton of JSON
# strings does not cover had unescaped quotes.
change json_schema_converter.cc \
  "s/{'\\\\r', '\\\\r'}, {'\\\\n', '\\\\n'}}, true);/{0, 0x1f}}, true);/"
refuse='if (json_string) XGRAMMAR_LOG(FATAL) << "not supported within JSON: " << regex;'
change json_schema_converter.cc \
  "s/^  return AddSubGrammar(Grammar::FromEBNF(RegexToEBNF(regex.*\$/  $refuse\\n&/"
# A count of 2^32 + 2 was 2; one may be 10,000, as in a schema. An escape of half a surrogate pair
# was a character, whose bytes are not UTF-8. Bounds between which no number of six decimals lies
# were those of the empty text.
change grammar_parser.cc 's/kMaxIntegerInGrammar = 1e15;/kMaxIntegerInGrammar = 10000;/'
refuse='if (\1_bound > 10000) return ResultErr("a repetition may have at most 10000");'
change fsm_builder.cc "s/^  \([a-z]*\)_bound = std::stoi(num_str);\$/&\\n  $refuse/"
is_none='(codepoint >> 11) == 27 || codepoint > 0x10FFFF' # a surrogate, or beyond Unicode
refuse="if ($is_none) XGRAMMAR_LOG(FATAL) << \"an escape is no character\";"
change grammar_parser.cc \
  "s/^ *if (codepoint == CharHandlingError::kInvalidEscape) {\$/    $refuse\\n&/"
begin='auto single = [\&](uint32_t codepoint) -> Result<RegexEscapeItem> {'
refuse="if ($is_none) return ResultErr(\"an escape is no character\");"
change fsm_builder.cc "s/^  auto single = .*uint32_t codepoint) {\$/  $begin\\n    $refuse/"
refuse='XGRAMMAR_LOG(FATAL) << "no number of at most 6 decimals is within the bounds";'
change json_schema_converter.cc "s/^ *return \"^()\\\$\";\$/$refuse/"
change json_schema_converter.cc "s/^  result << \"^(\";\$/  if (parts.empty()) $refuse\\n&/"
# The cache of whole grammars keeps failures for ever; the server has its own. That of rules stays.
change grammar_compiler.cc 's/^  if (!cache_enabled_) {$/  if (true) {/'

launcher=
if command -v ccache >/dev/null 2>&1; then
  launcher=-DCMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
mkdir -p "$(dirname "$prefix")"
part=$(mktemp -d "$prefix.XXXXXX")
chmod 755 "$part"
sources=$(find "$work/source/cpp" -name '*.cc' ! -path '*/tvm_ffi/*' -printf '%p;')
cmake -S deploy/xgrammar -B "$work/build" -G Ninja -DSOURCE="$work/source" -DSOURCES="$sources" \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -DNDEBUG" \
  -DCMAKE_UNITY_BUILD=ON \
  -DCMAKE_INSTALL_PREFIX="$part" -DCMAKE_INSTALL_LIBDIR=lib $launcher
CCACHE_BASEDIR=$work CCACHE_NOHASHDIR=1 cmake --build "$work/build"
cmake --install "$work/build"
mv -T "$part" "$prefix" || [ -f "$prefix/lib/libxgrammar.a" ] # another build was the first
echo "xgrammar is in $prefix"
