# The Debian 12 packages of this project, one list with the reason for each. Sourced (POSIX sh) by
# demo.sh, test.sh and the Dockerfile:
#
#   . deploy/packages.sh
#   install_packages build test

# group    package                     reason
package_list() {
  cat <<'LIST'
build      g++                         the C++20 compiler (12.2)
build      cmake                       3.25: presets and workflows
build      ninja-build                 the generator of every preset
build      pkg-config                  finds Highway, PCRE2, utf8proc and libedit
build      ccache                      fast rebuilds, across checkouts too
build      lld                         faster linker than GNU ld
build      libgrpc++-dev               transport of server and clients
build      protobuf-compiler           messages from proto/lssar/v1
build      protobuf-compiler-grpc      service stubs from proto/lssar/v1
build      libprotobuf-dev             Protobuf runtime
build      zlib1g-dev                  compression in Protobuf, which is linked statically
build      libabsl-dev                 Status, flat_hash_map, strings: comes with gRPC
build      libssl-dev                  SHA-256 of a checkpoint
build      libspdlog-dev               JSON logs
build      libpcre2-dev                pre-tokenizers: patterns that split a text into words
build      libsentencepiece-dev        reads and runs tokenizer.model
build      libutf8proc-dev             Unicode normalization forms of tokenizers
build      libhwy-dev                  SIMD with run-time dispatch
build      nlohmann-json3-dev          config.json, safetensors headers, --json
build      libcli11-dev                flags and environment in one
build      libtomlplusplus-dev         the configuration file and the file of API keys, header only
build      libedit-dev                 line editing of `lssar chat`
build      libboost1.81-dev            Asio and Beast, headers only: the HTTP port
build      prometheus-cpp-dev          /metrics
build      python3-venv                xgrammar's source, from PyPI: deploy/xgrammar.sh
model      python3-venv                gguf and numpy for deploy/get-model.sh, from PyPI
wheel      python3-venv                the tools of deploy/wheel.sh, from PyPI
package    dpkg-dev                    finds the packages that the programs need
package    file                        tells CPack which files are programs
package    python3                     makes the man pages of what --help prints
test       libgtest-dev                GoogleTest
test       libgmock-dev                its matchers
test       libbenchmark-dev            Google Benchmark: tests/bench
test       libdnnl-dev                 oneDNN: the GEMM peer in tests/bench
test       python3                     the tidy test, the Python end-to-end test
test       clang-format                the layout of C++ and CUDA sources, checked by tests/tidy
test       clang-16                    the fuzzers in tests/fuzz
test       libclang-rt-16-dev          libFuzzer and AddressSanitizer for them
test       haproxy                     2.6: deploy/edge, and what tests/attack attacks through it
test       chromium                    the web page is tested in it
test       chromium-driver             drives it
test       python3-selenium            talks to the driver
test       curl                        a foreign client of the HTTP API tests
test       openssl                     temporary certificates for the TLS tests
test       python3-grpcio              transport of the Python client in its tests
test       python3-protobuf            messages of the Python client
test       python3-matplotlib          draws figures: the Python package's extra [plot]
test       python3-yaml                parses compose and Kubernetes files in a test
test       python3-venv                virtual environments of the Python client tests
test       prometheus                  2.42 with promtool: tests/cluster
evaluation python3-venv                lm-eval and matplotlib of deploy/evaluate.sh, from PyPI
training   python3-torch               PyTorch 1.13: tests of models/training
training   python3-sentencepiece       trains and loads the vocabulary
training   libopenblas-dev             BLAS of PyTorch and attention_cpu.cc
test       buildah                     the quick form of the image test
test       dpkg-dev                    the quick form packs the programs
test       file                        the same
run        libgrpc++1.51               transport
run        zlib1g                      compression in Protobuf, which is linked statically
run        libabsl20220623             Status and containers
run        libssl3                     SHA-256 of a checkpoint
run        libspdlog1.10               logs
run        libpcre2-8-0                pre-tokenizers: patterns that split a text into words
run        libsentencepiece0           reads and runs tokenizer.model
run        libutf8proc2                Unicode normalization forms of tokenizers
run        libhwy1                     run-time dispatch
run        libedit2                    `lssar chat` inside the container
run        libprometheus-cpp-core1.0   /metrics
image      buildah                     builds and starts the image where no Docker engine runs
image      debootstrap                 bare systems: the base image, the proofs of wheel and package
image      groff-base                  man pages without warnings
image      systemd                     systemd-analyze verify of the unit
image      systemd-container           starts the service in a bare system
image      qemu-user-static            runs the programs as on a CPU without SSE4
cluster    haproxy                     2.6: deploy/cluster, before several servers
cluster    prometheus                  2.42 with promtool: metrics, alert rules
cluster    python3                     deploy/cluster/demo.py
cluster    python3-grpcio              transport of the Python client
cluster    python3-protobuf            its messages
LIST
}

# The packages of the named groups, one per line.
packages_of() {
  for packages_group in "$@"; do
    package_list | while read -r group package reason; do
      if [ "$group" = "$packages_group" ]; then
        echo "$package"
      fi
    done
  done
}

# The named packages that are not installed.
missing_packages() {
  for package in "$@"; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
      installed) ;;
      *) echo "$package" ;;
    esac
  done
}

# Installs the missing packages of the named groups. If none is missing, needs neither network nor
# root. Returns 1 and prints the command to run if it may not install.
install_packages() {
  if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "This system has no dpkg; assuming that the contents of these packages are installed:" \
      $(packages_of "$@")
    return 0
  fi
  packages_wanted=$(missing_packages $(packages_of "$@"))
  if [ -z "$packages_wanted" ]; then
    return 0
  fi
  packages_wanted=$(echo $packages_wanted)
  if [ "$(id -u)" -eq 0 ]; then
    packages_as_root=
  elif command -v sudo >/dev/null 2>&1; then
    packages_as_root=sudo
  else
    echo "These packages are missing, and installing them needs root (sudo was not found):" >&2
    echo "  apt-get install --no-install-recommends $packages_wanted" >&2
    return 1
  fi
  echo "installing: $packages_wanted"
  # Another apt-get may hold the lock on a machine that has just started.
  packages_apt="env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300"
  $packages_as_root $packages_apt update &&
    $packages_as_root $packages_apt -o Dpkg::Use-Pty=0 \
      install --no-install-recommends $packages_wanted
}
