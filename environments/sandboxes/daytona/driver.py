"""Shell programs that run in Daytona's terminals."""

from __future__ import annotations

from environments.sandboxes.remote_shell.program import BOOTSTRAP, quote

_VARIABLE = "HERMES_TERMINAL"

# Input is, for each command: its number, then parts of its input, each as a length and that many bytes,
# then 0; then "ok" once we have seen its end. The first part of its input is the program itself.
#
# Output is the command's stdout as it is, in which two things stand out by the token: frames, by the
# byte 035, each written by one call and so never mixed with other output, which hold its stderr, say
# with no content that the driver is ready, or with number 0 that a part of the input was taken; and at
# the end of both streams the mark, by the byte 036.
#
# A command may remove the driver's files: while it runs the driver needs only what it holds open.
#
# Processes that a command left behind may still hold its streams: from "ok" on somebody reads and drops
# what they print. The driver itself is none of the agent's processes, but cannot be kept from them.
_DRIVER = r"""
stty raw -echo || exit 1
exec 6<&0 2>/dev/null
trap : INT QUIT
umask 077
token=$1
d=$2
trap 'rm -rf "$d"' EXIT
s=; command -v setsid >/dev/null && s=setsid
ready() { printf '\035%s %s 0\n' "$token" "$1"; }
errors() {
  exec 5<>"$d/part$1" 7<>"$d/frame$1"
  rm -f "$d/part$1" "$d/frame$1"
  while dd bs=65536 count=1 of=/dev/fd/5; do
    n=$(wc -c </dev/fd/5)
    [ "$n" -gt 0 ] || break
    [ -e "$d/quiet$1" ] && continue
    { printf '\035%s %s %d\n' "$token" "$1" "$n"; cat /dev/fd/5; } >/dev/fd/7
    dd if=/dev/fd/7 bs=131072 count=1
  done <"$d/err$1"
  rm -f "$d/err$1" "$d/quiet$1"
}
feed() {
  exec 5>"$d/in$1"
  while read -r n && [ "$n" -gt 0 ]; do
    head -c "$n" | { cat >&5; cat >/dev/null; }
    printf '\035%s 0 1\n.' "$token"
  done
}
runs() {
  read -r x <"/proc/$1/stat" || return 1
  case ${x##*) } in [ZX]*) return 1 ;; esac
}
ready 0
while read -r k; do
  mkdir -p "$d" && mkfifo "$d/in$k" "$d/out$k" "$d/err$k" || exit 1
  cat "$d/out$k" &
  out=$!
  (trap '' HUP; errors "$k") &
  exec 3>"$d/out$k" 4>"$d/err$k"
  feed "$k" <&6 3>&- 4>&- &
  input=$!
  (exec $s BOOTSTRAP <"$d/in$k" >&3 2>&4 3>&- 4>&- 6<&-)
  c=$?
  printf '\036%s %s %s\n' "$token" "$k" "$c" >&4
  printf '\036%s %s %s\n' "$token" "$k" "$c" >&3
  exec 3>&- 4>&-
  wait "$input"
  read -r ok
  [ -e "$d/err$k" ] && : >"$d/quiet$k"
  if runs "$out"; then
    exec 8<>"$d/out$k" 9<"$d/out$k" 8>&-
    (trap '' HUP; exec cat <&9 >/dev/null) &
    exec 9<&-
    kill "$out"
    wait "$out"
  fi
  rm -f "$d/in$k" "$d/out$k"
  ready "$k"
done
"""

# A command that wants a terminal gets this one. Arguments: token, file of the program.
_TERMINAL = r"""
trap : INT QUIT
printf '\036%s ready 0\n' "$1"
(p=$(cat "$2"); rm -f "$2"; eval "$p")
printf '\036%s end %s\n' "$1" "$?"
while read -r x; do :; done
"""


def driver() -> str:
    """The driver. Arguments: token, a directory of its own, which it makes."""
    return _DRIVER.replace("BOOTSTRAP", BOOTSTRAP)


def terminal() -> str:
    """Runs one program in a terminal. Arguments: token, the file that holds the program."""
    return _TERMINAL


def start(script: str, *arguments: str) -> tuple[dict[str, str], bytes]:
    """How to start a script: variables for Daytona to set, and what to type into the shell.

    No file has to be there for it, which a command might have removed. The shell is not to remember what
    was typed.
    """
    words = " ".join(map(quote, arguments))
    line = f' unset HISTFILE; exec sh -c "unset {_VARIABLE}; ${_VARIABLE}" sh {words}\n'
    return {_VARIABLE: script}, line.encode()
