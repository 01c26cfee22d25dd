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

# Builds the programs into build/release.
build_release() {
  logged cmake --preset release -DLSSAR_BUILD_TESTS=OFF
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
