# shellcheck shell=bash
# What every part of the setup uses: messages, commands that stay quiet, and the check at the end.

problems=() # what stays missing: one line each, printed at the end

say() { printf 'setup: %s\n' "$*"; }
problem() { problems+=("$*"); }
has() { command -v "$1" >/dev/null 2>&1; }

# Runs a command and shows its output only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || status=$?
  if [ "$status" != 0 ]; then
    say "failed: $*"
    tail -n 20 "$log" | sed 's/^/  | /'
  fi >&2
  rm -f "$log"
  return "$status"
}

found() { printf '  %-18s%s\n' "$1" "$2"; }

# Prints a line for something found, or adds the problem that it is not there.
check() { # NAME WHERE REASON
  if [ -n "$2" ]; then found "$1" "$2"; else problem "$1: $3"; fi
}

report_problems() {
  [ ${#problems[@]} -gt 0 ] || return 0
  say "still missing:"
  printf '  %s\n' "${problems[@]}"
  return 1
} >&2

# ldconfig is not on an ordinary user's PATH in Debian.
library() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p | awk -v name="$1" '$1 == name { print $NF; exit }'; }
has_library() { [ -n "$(library "$1")" ]; }
