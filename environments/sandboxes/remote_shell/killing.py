"""Shell text that finds and kills everything that bears a mark, however it detached itself."""

from __future__ import annotations

from environments.sandboxes.remote_shell.program import LIMIT_NAME, MARK_VARIABLE, quote

CANNOT_LOOK = 3
"""Exit code of a program that could not find out what lives, since the machine starts no process."""

KILL_MARKED = f"""
trap '' PIPE
look() {{
  found=$(
    for p in $(
      grep -ls "^{LIMIT_NAME}  *$1" /proc/[0-9]*/limits
      grep -ls "{MARK_VARIABLE}=$1" /proc/[0-9]*/environ
      echo end
    ); do
      if [ "$p" = end ]; then echo end; break; fi
      p=${{p#/proc/}}
      p=${{p%%/*}}
      read -r s 2>/dev/null <"/proc/$p/stat" || continue
      case ${{s##*) }} in [ZX]*) continue ;; esac
      printf '%s ' "$p"
    done
  )
  # Without its end the list is worth nothing: a shell that cannot fork stops half-way.
  case $found in *end) found=${{found%end}} ;; *) return {CANNOT_LOOK} ;; esac
}}
# Freeze until a look finds nothing new, since what is frozen cannot fork; then kill; then look again.
kill_marked() {{
  frozen=; looks=0; kills=0
  while [ $kills -lt 8 ]; do
    look "$1" || return {CANNOT_LOOK}
    echo looked
    if [ -z "$found" ]; then return 0; fi
    looks=$((looks + 1))
    if [ "$found" != "$frozen" ] && [ $looks -lt 100 ]; then
      kill -STOP $found 2>/dev/null
      frozen=$found
    else
      kill -KILL $found 2>/dev/null
      frozen=; looks=0; kills=$((kills + 1))
      if [ $kills -gt 3 ]; then sleep 1; fi
    fi
  done
  return 1
}}
"""
"""Defines ``kill_marked MARK``: 0 once all are gone, 1 where some cannot be killed, else ``CANNOT_LOOK``.

It prints a line whenever it has looked, by which others can tell that it is slow, but not stopped.
"""


def kill(mark: str) -> bytes:
    """A program that kills all processes whose mark begins with ``mark``."""
    return f"{{\n{KILL_MARKED}\nkill_marked {mark}\n}}".encode()


def revoked_directory(scratch: str) -> str:
    """Where marks are noted whose programs are not to begin any more."""
    return f"{scratch}/revoked"


def kill_for_good(mark: str, scratch: str) -> bytes:
    """A program that kills all that bears ``mark``, now or later.

    A machine may start a program after it was told to, and after we have given it up: so the mark is
    noted first, and a program that finds its own mark noted ends at once.
    """
    directory = quote(revoked_directory(scratch))
    # Never makes more than the last directory: a sandbox that was removed is not to come back.
    note = f"mkdir {directory} 2>/dev/null; [ -d {directory} ] && echo >{directory}/{mark}".encode()
    return b"{\n%s\n%s\n}" % (note, kill(mark))
