# Sourced (POSIX sh) by the other scripts: runs long commands quietly, with their output in $log.

# Prints a heading.
say() {
  printf '\n%s\n' "$*"
}

# Prints the command as a user would type it, then runs it.
show() {
  printf '\n$'
  for show_word in "$@"; do
    case $show_word in
      *[!A-Za-z0-9_./:,=-]*) printf ' "%s"' "$show_word" ;;
      *) printf ' %s' "$show_word" ;;
    esac
  done
  echo
  "$@"
}

# Runs a command with its output in $log and no standard input. Shows the log's last line (for
# example ninja's status) meanwhile: in place on a terminal, once a minute elsewhere. If the command
# fails, prints the end of its output and returns its exit code.
logged() {
  printf '\n$ %s\n' "$*" >>"$log"
  logged_first=$(($(wc -l <"$log") + 1))
  "$@" >>"$log" 2>&1 </dev/null &
  logged_child=$!
  logged_last=
  logged_ticks=0
  while kill -0 "$logged_child" 2>/dev/null; do
    logged_line=$(tail -n "+$logged_first" "$log" | tail -n 1)
    logged_ticks=$((logged_ticks + 1))
    if [ -t 1 ]; then
      if [ "$logged_line" != "$logged_last" ]; then
        printf '\r\033[K  %.76s' "$logged_line"
        logged_last=$logged_line
      fi
    elif [ $((logged_ticks % 240)) -eq 0 ]; then
      printf '  %.96s\n' "$logged_line"
    fi
    sleep 0.25
  done
  if [ -t 1 ]; then
    printf '\r\033[K'
  fi
  logged_status=0
  wait "$logged_child" || logged_status=$?
  logged_child=
  if [ "$logged_status" -ne 0 ]; then
    printf '\nThis failed (exit code %s):\n  %s\nThe end of its output:\n\n' "$logged_status" "$*"
    tail -n "+$logged_first" "$log" | tail -n 60
    printf '\nThe full output is in %s\n' "$log"
  fi
  return "$logged_status"
}

# failures BUILD: what the failed tests of ctest's last run there printed last. A log is often kept
# by its end alone.
failures() {
  (
    cd "$1/Testing/Temporary"
    awk '
      FNR == NR { sub(/^[0-9]*:/, ""); failed[$0] = 1; next }
      $2 == "Test:" { name = $3; count = 0 }
      $0 == "<end of output>" && name in failed {
        printf "\n%s ended with\n", name
        for (i = count > 25 ? count - 25 : 0; i < count; i++) print "  " lines[i]
      }
      { lines[count++] = $0 }
      before == "Output:" { count = 0 } # the line under it
      { before = $0 }' LastTestsFailed.log LastTest.log
  )
}

# build_portable cpu|cuda TARGET...: what wheel.sh and package.sh pack. Builds targets into
# build/cpu, without the GPU backend whatever this machine has, or into build/cuda, with it.
# LSSAR_PRESET=ci shares the objects of the tests in ccache. Without xgrammar nothing is packed.
build_portable() {
  build=build/$1
  case $1 in cuda) portable_cuda=ON ;; *) portable_cuda=OFF ;; esac
  shift
  logged sh deploy/xgrammar.sh
  logged cmake --preset "${LSSAR_PRESET:-release}" -B "$build" -DLSSAR_BUILD_TESTS=OFF \
    -DLSSAR_WITH_CUDA="$portable_cuda" -DLSSAR_XGRAMMAR=ON
  logged cmake --build "$build" --target "$@"
}

# make_bare_system SUITE PACKAGES: a minimal Debian with these packages, separated by commas, in
# $root, once. It reaches the network as this machine does.
make_bare_system() {
  if [ ! -f "$root/ready" ]; then
    say "Making a bare Debian ($1) in $root"
    command -v debootstrap >/dev/null || logged install_packages image
    bare_mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' \
      'Codename: bookworm' 'Component: main' 2>/dev/null | head -n 1)
    rm -rf --one-file-system "$root"
    mkdir -p "$root"
    logged debootstrap --variant=minbase --include="$2" "$1" "$root" \
      "${bare_mirror:-http://deb.debian.org/debian}"
    touch "$root/ready"
  fi
  for bare_file in /etc/resolv.conf /etc/ssl/certs/ca-certificates.crt; do
    if [ -f "$bare_file" ]; then cp -L "$bare_file" "$root$bare_file"; fi
  done
}

# The version of the tree.
tree_version() {
  sed -n 's/^project(lssar VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt
}

# Whether pip failed, with this output, because PyPI cannot be reached, and not for a wrong hash or
# a full disk. An index that cannot be reached has no versions.
is_unreachable() {
  unreachable='from versions: none|ConnectionPool|ConnectionError|ProtocolError|[Rr]ead ?[Tt]imed'
  grep -v '^ *WARNING' "$1" | grep -Eq "$unreachable|ReadTimeout"
}

# Builds xgrammar where there is none. Without PyPI the server is built without structured output.
build_xgrammar() {
  build_xgrammar_status=0
  logged sh deploy/xgrammar.sh || build_xgrammar_status=$?
  if [ "$build_xgrammar_status" -eq 3 ]; then
    say "PyPI cannot be reached: this build has no structured output (deploy/xgrammar.sh)"
  elif [ "$build_xgrammar_status" -ne 0 ]; then
    return "$build_xgrammar_status"
  fi
}

# Builds the programs into build/release for this machine: kernels for other CPUs are an eighth of
# the work, those for GPUs a fifth, wherever nvcc is.
build_release() {
  cuda=OFF
  [ ! -e /dev/nvidiactl ] || cuda=AUTO
  set -- -DLSSAR_BUILD_TESTS=OFF "-DLSSAR_WITH_CUDA=$cuda" -DLSSAR_INSTRUCTION_SET=native
  printf '\n$ cmake --preset release %s\n' "$*"
  logged cmake --preset release "$@"
  echo '$ cmake --build --preset release --target lssar-server lssar'
  logged cmake --build --preset release --target lssar-server lssar
}

# Resolves a path relative to $caller, the working directory that the script was started in.
from_caller() {
  case $1 in
    /*) echo "$1" ;;
    *) echo "$caller/$1" ;;
  esac
}

# For traps: stops the command that `logged` is running.
stop_logged() {
  if [ -n "${logged_child:-}" ]; then
    kill "$logged_child" 2>/dev/null || true
    wait "$logged_child" 2>/dev/null || true
    logged_child=
  fi
}

# Starts $log. When the script exits for any reason, stops the running command and calls at_end,
# which a script may redefine.
start_log() {
  trap end_log EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  mkdir -p "$(dirname "$log")"
  : >"$log"
}

end_log() {
  status=$?
  trap - EXIT
  stop_logged
  at_end
  exit "$status"
}

at_end() {
  :
}
