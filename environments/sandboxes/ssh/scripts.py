"""Shell programs that keep order on the remote machine. Each is one compound command."""

from __future__ import annotations

from environments.sandboxes.remote_shell.program import LIMIT_NAME, MARK_VARIABLE, mark_of, quote, set_mark

CANNOT_LOOK = 3
"""Exit code of a program that could not find out what lives, since the machine starts no process."""

_KILL = f"""
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
remove() {{
  rm -rf -- "$1" 2>/dev/null || {{ chmod -R u+rwx -- "$1" 2>/dev/null; rm -rf -- "$1" 2>/dev/null; }}
}}
# What still has processes stays, so that the next run finds them.
remove_run() {{
  for f in "$1"/[0-9]*; do
    if [ -d "$f" ]; then kill_marked "${{f##*/}}" || return $?; fi
  done
  remove "$1"
}}
"""


def kill(mark: str) -> bytes:
    """Kill all processes whose mark begins with ``mark``; fails where some cannot be killed."""
    return _program(f"{_KILL}\nkill_marked {mark}")


def remove_sandbox(directory: str, family: str) -> bytes:
    """Kill all of a sandbox and remove its directory."""
    return _program(f"{_KILL}\nkill_marked {family} && remove {quote(directory)}")


def remove_runs(directories: list[str]) -> bytes:
    """Kill and remove all of some runs."""
    steps = "\n".join(f"remove_run {quote(path)} || code=$?" for path in directories)
    return _program(f"{_KILL}\ncode=0\n{steps}\nexit $code")


def survey(base: str) -> bytes:
    """Make the directory of all runs, and print facts and runs.

    First a line each: home, user, user id, PATH, the directory. Then for every run its owner, the
    age of its lease in seconds, and its name.
    """
    return _program(
        f"""
b={quote(base)}
case $b in "~"|"~/"*) b=$HOME${{b#"~"}} ;; esac
umask 077
mkdir -p -- "$b" && cd "$b" && chmod 700 . || exit 1
printf '%s\\n' "$HOME" "$(id -un)" "$(id -u)" "$PATH" "$(pwd -P)"
now=$(date +%s)
for r in *; do
  [ -d "$r" ] || continue
  t=$(stat -c %Y "$r/lease" 2>/dev/null || stat -c %Y "$r" 2>/dev/null) || continue
  o=; read -r o 2>/dev/null <"$r/owner"
  printf '%s %s %s\\n' "${{o:-unknown}}" "$((now - t))" "$r"
done
exit 0
"""
    )


def make_run(directory: str, owner: str, keeper: str) -> bytes:
    """Make a run's directory, and in it one that has its keeper killed with the sandboxes."""
    path = quote(directory)
    return _program(
        f"umask 077; mkdir {path} {path}/{keeper} && echo lease >{path}/lease "
        f"&& printf '%s\\n' {quote(owner)} >{path}/owner"
    )


def keep_lease(directory: str, keeper: str, grace: int) -> bytes:
    """Renew the lease at every line of input. At its end wait ``grace`` seconds; where nobody has
    renewed the lease by then the run is dead, and is removed. ``keeper`` is the family of its mark."""
    return _program(
        f"""
{_KILL}
{set_mark(mark_of(keeper, 0))}
d={quote(directory)}
while read -r line; do
  [ "$line" = done ] && exit 0
  [ -d "$d" ] || exit 0
  echo "$$ $line" >"$d/lease"
done
trap '' HUP PIPE
exec >/dev/null 2>&1
before=$(cat "$d/lease")
sleep {grace}
[ "$(cat "$d/lease" 2>/dev/null)" = "$before" ] || exit 0
rmdir "$d/{keeper}"  # or we would kill ourselves first
remove_run "$d"
exit 0
"""
    )


def make_sandbox(directory: str, working_directory: str | None) -> bytes:
    """Make a sandbox's directories."""
    path = quote(directory)
    made = f"umask 077; mkdir {path} && cd {path} && mkdir home tmp scratch || exit 1"
    if working_directory is not None:
        made += f"\nmkdir -p -- {quote(working_directory)}"
    return _program(made)


def save(file: str) -> bytes:
    """Write the rest of the input to a file that nobody else may read."""
    return _program(f"umask 077; exec cat >{quote(file)}")


def is_directory(path: str) -> bytes:
    """Succeed where ``path`` is a directory."""
    return _program(f"[ -d {quote(path)} ]")


def _program(text: str) -> bytes:
    return f"{{\n{text}\n}}".encode("utf-8", "surrogateescape")
