"""File operations as shell scripts, and what their answers mean.

They need ``cat``, ``stat``, ``mkdir``, ``mv``, ``rm``, ``chmod`` and ``readlink`` of GNU or BusyBox, for
trees ``tar``. Names are arguments, never text of a script, so they may contain anything but NUL.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterator
from typing import Literal

from environments.sandboxes.arguments import too_large
from environments.sandboxes.base import FileInfo, file_error

FAILED = 99
"""Exit code of a script that says ``errno NAME`` itself."""

# fail NAME: give up with an error number. missing PATH: why it cannot be found.
_COMMON = r"""
LC_ALL=C
export LC_ALL
fail() { printf 'errno %s\n' "$1" >&2; exit 99; }
missing() {
  if [ -L "$1" ]; then fail ENOENT; fi
  d=$1
  while [ "$d" != / ] && [ -n "$d" ]; do
    d=${d%/*}
    [ -e "${d:-/}" ] || continue
    [ -d "${d:-/}" ] || fail ENOTDIR
    [ -x "${d:-/}" ] || fail EACCES
    break
  done
  fail ENOENT
}
"""

READ = (
    _COMMON
    + r"""
[ -e "$1" ] || missing "$1"
[ -d "$1" ] && fail EISDIR
[ -f "$1" ] || fail EINVAL
[ -r "$1" ] || fail EACCES
if [ "$4" ]; then s=$(stat -L -c %s -- "$1") && [ $((s - $2)) -gt "$4" ] && fail EFBIG; fi
if [ "$2" = 0 ] && [ -z "$3" ]; then exec cat -- "$1"; fi
if [ -z "$3" ]; then exec tail -c "+$(($2 + 1))" -- "$1"; fi
if [ "$2" = 0 ]; then exec head -c "$3" -- "$1"; fi
tail -c "+$(($2 + 1))" -- "$1" | head -c "$3"
"""
)
"""Path, offset, length (empty: to the end), most bytes that may come (empty: as the length says)."""

WRITE = (
    _COMMON
    + r"""
t=$1
n=0
while [ -L "$t" ]; do
  n=$((n + 1))
  [ $n -le 40 ] || fail ELOOP
  l=$(readlink -- "$t" && printf x) || fail EACCES
  l=${l%?x}
  case $l in /*) t=$l;; *) t=${t%/*}/$l;; esac
done
[ -d "$t" ] && fail EISDIR
if [ -e "$t" ] && ! [ -f "$t" ]; then fail EINVAL; fi
if [ -e "$t" ] && ! [ -w "$t" ]; then fail EACCES; fi
d=${t%/*}
mkdir -p -- "${d:-/}" || exit 98
n=$d/.hermes-$4
if [ -n "$3" ]; then m=$3; elif [ -f "$t" ]; then m=$(stat -c %a -- "$t"); else m=644; fi
umask 077
cat > "$n" && chmod "$m" "$n" && [ "$(stat -c %s -- "$n")" = "$2" ] && mv -f -- "$n" "$t" && exit 0
rm -f -- "$n"
exit 98
"""
)
"""Path, number of bytes, octal mode (empty: as it is), a random name."""

STAT = _COMMON + '[ -e "$1" ] || [ -L "$1" ] || missing "$1"\nexec stat -c "%f %s %.9Y" -- "$1"'
"""Path. Prints mode in hexadecimal, size, time of change."""

LIST = (
    _COMMON
    + r"""
[ -e "$1" ] || missing "$1"
[ -d "$1" ] || fail ENOTDIR
[ -r "$1" ] && cd "$1" || fail EACCES
find . -ignore_readdir_race -maxdepth 0 -printf '' 2>/dev/null &&
  exec find . -ignore_readdir_race -mindepth 1 -maxdepth 1 -printf '%y %m %s %T@ %f\0'
for f in * .[!.]* ..?*; do
  [ -e "$f" ] || [ -L "$f" ] || continue
  s=$(stat -c '%f %s %.9Y' -- "$f" 2>/dev/null) || continue
  printf 'x %s %s\0' "$s" "$f"
done
"""
)
"""Path. Entries ended by NUL; without GNU find, in the form of ``STAT`` after an ``x``."""

UNPACK = (
    _COMMON
    + r"""
command -v tar >/dev/null 2>&1 || fail ENOSYS
mkdir -p -- "$1" || exit 98
exec tar -x -p -o -f - -C "$1"
"""
)
"""Directory."""

PACK = (
    _COMMON
    + r"""
[ -e "$1/$2" ] || [ -L "$1/$2" ] || missing "$1/$2"
command -v tar >/dev/null 2>&1 || fail ENOSYS
exec tar -c -f - -C "$1" -- "$2"
"""
)
"""Directory, name in it."""

_REASONS = {"ENOSYS": "there is no tar program in the sandbox", "EINVAL": "not a regular file"}

_TEXTS = {
    "No space left": errno.ENOSPC,
    "quota exceeded": errno.EDQUOT,
    "Permission denied": errno.EACCES,
    "Operation not permitted": errno.EPERM,
    "Read-only file system": errno.EROFS,
    "Is a directory": errno.EISDIR,
    "Not a directory": errno.ENOTDIR,
    "File exists": errno.ENOTDIR,  # mkdir -p, where a file is in the way
    "File name too long": errno.ENAMETOOLONG,
    "Too many levels": errno.ELOOP,
    "No such file": errno.ENOENT,
    "nonexistent": errno.ENOENT,
}


def error_of(code: int, message: bytes, path: str) -> OSError:
    """The error that a failed script means, as the local file system would raise it."""
    text = message.decode("utf-8", "replace").strip()
    if code == FAILED and text.rpartition("\n")[2].startswith("errno "):
        name = text.rpartition(" ")[2]
        if name == "EFBIG":
            return too_large(path)
        number = getattr(errno, name, errno.EIO)
        return file_error(number, _REASONS.get(name, os.strerror(number)), path)
    for part, number in _TEXTS.items():
        if part in text:
            return file_error(number, os.strerror(number), path)
    return OSError(errno.EIO, text[-500:] or f"exit code {code}", path)


def parse_stat(path: str, answer: bytes) -> FileInfo:
    """What ``STAT`` printed."""
    mode, size, modified = answer.split()
    return _from_raw(path, int(mode, 16), int(size), float(modified))


def parse_list(directory: str, answer: bytes) -> Iterator[FileInfo]:
    """What ``LIST`` printed, in no particular order."""
    for entry in answer.split(b"\0"):
        if not entry:
            continue
        kind, first, second, third, name = entry.split(b" ", 4)
        path = posixpath.join(directory, name.decode("utf-8", "surrogateescape"))
        if kind == b"x":
            yield _from_raw(path, int(first, 16), int(second), float(third))
        else:
            yield FileInfo(path, _KINDS.get(kind, "other"), int(second), int(first, 8), float(third))


_Kind = Literal["file", "directory", "link", "other"]
_KINDS: dict[bytes, _Kind] = {b"f": "file", b"d": "directory", b"l": "link"}


def _from_raw(path: str, mode: int, size: int, modified: float) -> FileInfo:
    letters = {stat.S_IFREG: b"f", stat.S_IFDIR: b"d", stat.S_IFLNK: b"l"}
    kind = _KINDS.get(letters.get(stat.S_IFMT(mode), b""), "other")
    return FileInfo(path, kind, size, stat.S_IMODE(mode), modified)
