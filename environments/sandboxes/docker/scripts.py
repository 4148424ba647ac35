"""The shell programs that run inside a container: POSIX ``sh``, as dash, bash and BusyBox have it.

Each is passed to ``/bin/sh -c`` with its data as arguments, never as part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

_BEGIN = """\
echo "$$" >&2
exec 9>&2
[ "$1" = merge ] && exec 2>&1
cd "$2" || { [ -e "$2" ] && exit 126; exit 127; }
if [ "$3" != shell ]; then shift 3
elif command -v bash >/dev/null 2>&1; then set -- bash -c "$4"
else set -- sh -c "$4"
fi
"""

SPAWN = _BEGIN + 'exec "$@" 9>&-\n'
"""Start of a background process. Its first line on stderr is its process number.
Arguments: ``merge`` or ``apart``, directory, ``shell`` or ``vector``, text or words."""

COMMAND = (
    _BEGIN
    + """\
exec 8>&2 2>/dev/null
(exec "$@" 2>&8 8>&- 9>&-)
code=$?
writers() {
  for directory in /proc/[0-9]*; do
    case $directory in /proc/1|/proc/$$) continue;; esac
    [ "$directory/fd/1" -ef "/proc/$$/fd/1" ] && return
    [ "$directory/fd/2" -ef "/proc/$$/fd/8" ] && return
  done
  return 1
}
writers || exit "$code"
printf '\\0%s %s\\n' "$HERMES_COMMAND" "$code"
printf '\\0%s %s\\n' "$HERMES_COMMAND" "$code" >&9
exec </dev/null 9>&-
while writers; do sleep 5 >/dev/null 8>&-; done
"""
)
"""A command that is waited for; arguments as for ``SPAWN``.

The engine closes the output of a command that ends, which would kill what the command left in the
background as soon as that prints. So where such processes are, the end is told in both streams (NUL, the
command's mark, its exit code), and this waits until they are gone."""

GUARD = """\
umask 077
# fields FILE: sets parent, session and start from /proc/PID/stat; a name may contain anything
fields() {
  all=
  while IFS= read -r part || [ "$part" ]; do all="$all $part"; done < "$1/stat" || return 1
  set -- ${all##*) }
  [ $# -ge 20 ] || return 1
  state=$1 parent=$2 session=$4; shift 19; start=$1
}
# owner DIRECTORY: sets owner to the command that a process was started by, as its environment says
owner() {
  owner=
  while IFS= read -r part || [ "$part" ]; do
    case $part in *HERMES_COMMAND=*) owner=${part##*HERMES_COMMAND=}; owner=${owner%%.*}; return;; esac
  done < "$1/environ"
}
# belongs PID: whether the process is part of the tree that is being killed
belongs() {
  [ "$start" -ge "$since" ] || return 1
  case "$members" in *" $parent "*|*" $session "*) return 0;; esac
  [ "$parent" = 1 ] && [ "$session" != 1 ] || return 1
  owner "/proc/$1"
  [ "$owner" = "$command" ] && return 0
  case " $others " in *" $owner "*) [ "$owner" ] && return 1;; esac
  [ "$alone" = 1 ]
}
find_more() {
  found=
  for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    case "$members" in *" $pid "*) continue;; esac
    [ "$pid" != 1 ] && [ "$pid" != "$$" ] && fields "$directory" && belongs "$pid" || continue
    kill -STOP "$pid"; members="$members$pid "; found=1
  done
  [ "$found" ]
}
# tree ROOT SECONDS/100 COMMAND ALONE [OTHERS...]: freeze what belongs to it until nothing new is found
tree() {
  root=$1 age=$2 command=$3 alone=$4; shift 4; others="$*"
  read -r up rest < /proc/uptime
  since=$((${up%.*}${up#*.} - age))
  kill -STOP "$root" && fields "/proc/$root" && since=$start
  members=" $root "
  passes=0
  while find_more && [ $passes -lt 200 ]; do passes=$((passes + 1)); done
  kill -KILL $members
  passes=0
  until dead || [ $passes -gt 5000 ]; do passes=$((passes + 1)); done
}
# wake ROOT: let a program of ours and what it started go on; woken tells whether anything was stopped
wake() {
  members=" $1 "
  for pass in 1 2 3; do
    for directory in /proc/[0-9]*; do
      pid=${directory#/proc/}
      fields "$directory" || continue
      case "$members" in *" $pid "*|*" $parent "*) ;; *) continue;; esac
      members="$members$pid "
      case $state in T|t) kill -CONT "$pid"; woken=1;; esac
    done
  done
}
dead() {
  for pid in $members; do
    [ -d "/proc/$pid" ] && fields "/proc/$pid" || continue
    case $state in Z|X) ;; *) return 1;; esac
  done
}
exec 2>/dev/null
mkdir -p -m 777 "$1" && chmod 1777 "$1"
echo ready
while read -r order number arguments; do
  woken=0
  case $order in
  all) kill -KILL -1;;
  tree) tree $arguments;;
  wake) wake $arguments;;
  esac
  echo "done $number $woken"
done
"""
"""Kills process trees. Uses only what the shell has built in: it works where nothing can be started.

Orders come by line on standard input. A tree is the command, its descendants and its session; and of
the orphans that are younger than the command those that carry its mark in their environment, or, if
no other command ran meanwhile (``alone``), no mark of a running command.
Argument: a directory that it makes for our files."""

PROBE = 'printf "%s\\0%s\\0" "$HOME" "$PWD"; command -v tar >/dev/null 2>&1 && printf tar'
"""What a sandbox is like for its default user."""

PREPARE = """\
echo "$$" >&2
[ -d "$1" ] || mkdir -p "$1" && { [ -z "$2" ] || chown "$2" "$1"; }
"""
"""Makes a working directory, as root. Arguments: the directory, its user or nothing."""

NO_ENTRY, IS_DIRECTORY, NOT_DIRECTORY, NO_ACCESS, NOT_REGULAR, FAILED, TOO_LARGE = range(81, 88)
"""Exit codes of the file programs."""

_MISSING = f"""\
missing() {{
  p=$1
  while p=${{p%/*}}; [ "$p" ]; do
    [ -e "$p" ] || {{ [ -L "$p" ] && exit {NO_ENTRY}; continue; }}
    [ -d "$p" ] || exit {NOT_DIRECTORY}
    [ -x "$p" ] || exit {NO_ACCESS}
    break
  done
  exit {NO_ENTRY}
}}
"""

READ = (
    _MISSING
    + f"""\
[ -e "$1" ] || missing "$1"
[ -d "$1" ] && exit {IS_DIRECTORY}
case $1 in */) exit {NOT_DIRECTORY};; esac
[ -f "$1" ] || exit {NOT_REGULAR}
[ -r "$1" ] || exit {NO_ACCESS}
if [ "$4" ]; then s=$(stat -L -c %s "$1") && [ $((s - $2)) -gt "$4" ] && exit {TOO_LARGE}; fi
if [ "$2" = 0 ] && [ -z "$3" ]; then exec cat "$1"; fi
if [ -z "$3" ]; then exec tail -c "+$(($2 + 1))" "$1"; fi
if [ "$2" = 0 ]; then exec head -c "$3" "$1"; fi
tail -c "+$(($2 + 1))" "$1" 2>/dev/null | head -c "$3"
"""
)
"""Arguments: path, offset, length or nothing, most bytes that may come or nothing."""

WRITE = (
    _MISSING
    + f"""\
umask 022
t=$1
[ -d "$t" ] && exit {IS_DIRECTORY}
case $t in */) exit {IS_DIRECTORY};; esac
n=0
while [ -L "$t" ]; do
  [ $n -lt 40 ] || exit {NOT_REGULAR}
  l=$(readlink "$t" && echo .) || exit {FAILED}
  l=${{l%??}}
  case $l in /*) t=$l;; *) t=${{t%/*}}/$l;; esac
  n=$((n + 1))
done
d=${{t%/*}}; d=${{d:-/}}
if [ ! -d "$d" ]; then
  [ -e "$d" ] && exit {NOT_DIRECTORY}
  mkdir -p "$d" || {{ p=$d; while [ ! -e "$p" ]; do p=${{p%/*}}; p=${{p:-/}}; done
    [ -d "$p" ] || exit {NOT_DIRECTORY}; [ -w "$p" ] || exit {NO_ACCESS}; exit {FAILED}; }}
fi
[ -e "$t" ] && [ ! -f "$t" ] && exit {NOT_REGULAR}
[ -e "$t" ] && [ ! -w "$t" ] && exit {NO_ACCESS}
if [ ! -w "$d" ] && [ -e "$t" ]; then
  cat > "$t" || exit {FAILED}
  [ -z "$3" ] || chmod "$3" "$t"
  exit
fi
[ -w "$d" ] || exit {NO_ACCESS}
w="${{d%/}}/.hermes-write-$$"
trap 'rm -f "$w"' EXIT
if [ -e "$t" ]; then cp -p "$t" "$w" || exit {FAILED}; fi
cat > "$w" || exit {FAILED}
[ "$(wc -c < "$w")" -eq "$2" ] || {{ echo "only a part arrived" >&2; exit {FAILED}; }}
[ -z "$3" ] || chmod "$3" "$w" || exit {FAILED}
mv -f "$w" "$t" || exit {FAILED}
"""
)
"""Arguments: path, length of the data on standard input, octal mode or nothing."""

STAT = (
    _MISSING
    + f"""\
[ -e "$1" ] || [ -L "$1" ] || missing "$1"
exec stat -c '%f %s %Y' "$1" || exit {FAILED}
"""
)
"""Arguments: path."""

LIST = (
    _MISSING
    + f"""\
[ -e "$1" ] || missing "$1"
[ -d "$1" ] || exit {NOT_DIRECTORY}
[ -r "$1" ] && cd "$1" || exit {NO_ACCESS}
set -- * .[!.]* ..?*
n=$#
while [ $n -gt 0 ]; do
  f=$1; shift; n=$((n - 1))
  if [ -e "$f" ] || [ -L "$f" ]; then set -- "$@" "./$f"; fi
done
[ $# -gt 0 ] || exit 0
printf '%s\\0' "$@"
printf '\\0'
printf '%s\\0' "$@" | xargs -0 stat -c '%f %s %Y //%n' 2>/dev/null
exit 0
"""
)
"""Names, each ended by NUL, an empty one, then a line per name. Arguments: directory."""

MAKE_DIRECTORY = (
    _MISSING
    + f'[ -d "$1" ] || mkdir -p "$1" || {{ [ -e "$1" ] && exit {NOT_DIRECTORY}; exit {NO_ACCESS}; }}\n'
)
"""Arguments: directory."""

_SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi'

_DECODE = """\
n=$#
while [ "$n" -gt 0 ]; do x=$(printf '%b.' "$1"); shift; set -- "$@" "${x%.}"; n=$((n - 1)); done
"""


def shell_command(program: str, *arguments: str) -> list[str]:
    """Argument vector that runs a program; arguments may hold any bytes (as surrogate escapes)."""
    if all(map(_is_plain, arguments)):
        return ["/bin/sh", "-c", program, "sh", *arguments]
    return ["/bin/sh", "-c", _DECODE + program, "sh", *_encoded(arguments)]


def plain_variables(variables: Mapping[str, str]) -> Mapping[str, str]:
    """Those that reach a command by the engine, which is told them in UTF-8, and by ``sh``."""
    return {name: value for name, value in variables.items() if _passes(name, value)}


def with_odd_variables(command: str | Sequence[str], variables: Mapping[str, str]) -> str | Sequence[str]:
    """The same command with the others, which it gets from ``env``."""
    odd = [f"{name}={value}" for name, value in variables.items() if not _passes(name, value)]
    if not odd:
        return command
    return [
        "env",
        "--",
        *odd,
        *(["sh", "-c", _SHELL, "sh", command] if isinstance(command, str) else command),
    ]


def longest_form(text: str) -> int:
    """Bytes of an argument as ``shell_command`` passes it."""
    if text.isascii():
        return len(text)
    return len(text.encode()) if _is_plain(text) else 5 * len(text.encode("utf-8", "surrogateescape"))


def with_counted_input(argv: Sequence[str], length: int) -> list[str]:
    """The same program for a connection whose input cannot be closed: it takes so many bytes and no more."""
    shell, option, program, *arguments = argv
    return [shell, option, f"head -c {length} | {{\n{program}\n}}", *arguments]


def _passes(name: str, value: str) -> bool:
    """Some shells, dash among them, hand on no variables with names such as ``FOO.BAR``."""
    return _IDENTIFIER.match(name) is not None and _is_plain(value)


def _is_plain(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(arguments: Sequence[str]) -> list[str]:
    return [
        "".join(f"\\0{byte:03o}" for byte in text.encode("utf-8", "surrogateescape")) for text in arguments
    ]
