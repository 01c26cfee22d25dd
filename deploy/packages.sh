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
build      pkg-config                  finds Highway, SentencePiece, PCRE2 and libedit
build      ccache                      building again is cheap, in this and in the next checkout
build      lld                         links in a fraction of the time of GNU ld
build      libgrpc++-dev               the server's and the clients' transport
build      protobuf-compiler           messages from proto/lssar/v1
build      protobuf-compiler-grpc      service stubs from proto/lssar/v1
build      libprotobuf-dev             the messages' runtime
build      zlib1g-dev                  Protobuf's compression: its archive is linked whole
build      libabsl-dev                 Status, flat_hash_map, strings: comes with gRPC
build      libssl-dev                  SHA-256 of a checkpoint
build      libspdlog-dev               JSON logs
build      libsentencepiece-dev        the shipped checkpoint's tokenizer
build      libpcre2-dev                words of GPT-2's byte-level BPE
build      libhwy-dev                  SIMD with run-time dispatch
build      nlohmann-json3-dev          config.json, safetensors headers, --json
build      libcli11-dev                flags, environment and configuration file in one
build      libedit-dev                 line editing of `lssar chat`
build      libboost1.81-dev            Asio and Beast, headers only: the HTTP port
build      prometheus-cpp-dev          /metrics
test       libgtest-dev                GoogleTest
test       libgmock-dev                its matchers
test       libbenchmark-dev            Google Benchmark: tests/bench
test       libdnnl-dev                 oneDNN: the GEMM peer in tests/bench
test       python3                     the tidy test, the Python end-to-end test
test       curl                        one of the clients that the HTTP API is tested with
test       openssl                     throw-away certificates of the clients' test
test       python3-grpcio              the Python end-to-end test speaks to a server
test       python3-protobuf            its messages
test       python3-yaml                compose and Kubernetes files, read by a test
training   python3-torch               PyTorch 1.13: models/training, as its tests run it
training   python3-sentencepiece       trains and uses the vocabulary
training   libopenblas-dev             matrix products, PyTorch's and attention_cpu.cc's
run        libgrpc++1.51               transport
run        zlib1g                      Protobuf's compression; Protobuf itself is in the programs
run        libabsl20220623             Status and containers
run        libssl3                     SHA-256 of a checkpoint
run        libspdlog1.10               logs
run        libsentencepiece0           tokenizer
run        libpcre2-8-0                words of GPT-2's byte-level BPE
run        libhwy1                     run-time dispatch
run        libedit2                    `lssar chat` inside the container
run        libprometheus-cpp-core1.0   /metrics
image      buildah                     builds and starts the image where no docker engine runs
image      debootstrap                 the base image without a registry
LIST
}

# The packages of the groups named, a line each.
packages_of() {
  for packages_group in "$@"; do
    package_list | while read -r group package reason; do
      if [ "$group" = "$packages_group" ]; then
        echo "$package"
      fi
    done
  done
}

# Those of the packages named that this machine lacks.
missing_packages() {
  for package in "$@"; do
    case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
      installed) ;;
      *) echo "$package" ;;
    esac
  done
}

# Installs what is missing of the groups named; does nothing, and needs no network and no rights,
# when nothing is. Returns 1 with a sentence on what to do when it cannot.
install_packages() {
  if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "No Debian packages on this system; taking it that what they hold is there:" \
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
    echo "These packages are missing, and only root may install them (there is no sudo here):" >&2
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
