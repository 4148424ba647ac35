"""Shell programs that keep order on the remote machine. Each is one compound command."""

from __future__ import annotations

from environments.sandboxes.remote_shell.killing import KILL_MARKED
from environments.sandboxes.remote_shell.program import mark_of, quote, set_mark

OVERDUE_SECONDS = 5
"""A sandbox is ended at most so long after its deadline."""

_KILL = f"""
{KILL_MARKED}
remove() {{
  rm -rf -- "$1" 2>/dev/null || {{ chmod -R u+rwx -- "$1" 2>/dev/null; rm -rf -- "$1" 2>/dev/null; }}
}}
kept() {{ [ -e "$1/kept" ] && read -r t 2>/dev/null <"$1/deadline" && [ "$t" -gt "$(date +%s)" ]; }}
# What still has processes stays, so that the next run finds them. Where a sandbox is kept, so is what ends
# it at its deadline, which is the only one without a deadline of its own.
remove_run() {{
  keep=
  for f in "$1"/[0-9]*; do
    if kept "$f"; then keep=1; fi
  done
  for f in "$1"/[0-9]*; do
    if [ ! -d "$f" ] || kept "$f"; then continue; fi
    if [ "$keep" ] && [ ! -e "$f/deadline" ]; then continue; fi
    kill_marked "${{f##*/}}" || return $?
    if [ "$keep" ]; then remove "$f"; fi
  done
  if [ "$keep" ]; then : >"$1/closed"; else remove "$1"; fi
}}
"""


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
    """Make a run's directory, and in it one that has its keeper killed with the sandboxes.

    What is left behind ends each sandbox at its deadline, and itself with the run's directory.
    """
    path = quote(directory)
    return _program(
        f"""
umask 077
mkdir {path} {path}/{keeper} && echo lease >{path}/lease || exit 1
printf '%s\\n' {quote(owner)} >{path}/owner || exit 1
{_KILL}
end_overdue() {{
  now=$(date +%s)
  for f in "$1"/[0-9]*/deadline; do
    read -r t 2>/dev/null <"$f" && [ "$t" -le "$now" ] || continue
    f=${{f%/deadline}}
    kill_marked "${{f##*/}}" && remove "$f"
  done
  [ -e "$1/closed" ] || return 0
  for f in "$1"/[0-9]*/deadline; do
    if [ -e "$f" ]; then return 0; fi
  done
  remove "$1"
}}
(
  trap '' HUP PIPE
  {set_mark(mark_of(keeper, 1))}
  while sleep {OVERDUE_SECONDS} && [ -d {path} ]; do end_overdue {path}; done
) </dev/null >/dev/null 2>&1 &
"""
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


def make_sandbox(directory: str, working_directory: str | None, lifetime: float) -> bytes:
    """Make the directories of a sandbox that may live ``lifetime`` seconds."""
    path = quote(directory)
    made = f"umask 077; mkdir {path} && cd {path} && mkdir home tmp scratch || exit 1\n"
    made += f"printf %s {quote(working_directory or '')} >made\n"
    made += f"echo $(($(date +%s) + {max(1, round(lifetime))})) >deadline"
    if working_directory is not None:
        made += f"\nmkdir -p -- {quote(working_directory)}"
    return _program(made)


def keep_sandbox(directory: str, seconds: float) -> bytes:
    """Let a sandbox outlive its run, by so long. Fails where there is none."""
    return _program(
        f"cd {quote(directory)} || exit 1\n"
        f"echo $(($(date +%s) + {max(1, round(seconds))})) >deadline && : >kept"
    )


def list_sandboxes(base: str) -> bytes:
    """Print a line for every sandbox of every run.

    Owner, age of the lease, seconds until the deadline, age of the sandbox, ``kept`` or ``-``, its path
    below the directory of all runs.
    """
    return _program(
        f"""
cd {quote(base)} || exit 0
now=$(date +%s)
for r in *; do
  [ -d "$r" ] || continue
  o=; read -r o 2>/dev/null <"$r/owner"
  l=$(stat -c %Y "$r/lease" 2>/dev/null) || l=0
  for f in "$r"/[0-9]*/deadline; do
    t=; read -r t 2>/dev/null <"$f" || continue
    f=${{f%/deadline}}
    m=$(stat -c %Y "$f/made" 2>/dev/null) || m=$now
    k=-; if [ -e "$f/kept" ]; then k=kept; fi
    printf '%s %s %s %s %s %s\n' "${{o:-unknown}}" "$((now - l))" "$((t - now))" "$((now - m))" $k "$f"
  done
done
exit 0
"""
    )


def show_working_directory(directory: str) -> bytes:
    """Print where a sandbox's commands begin, if that is not its home. Fails where there is none."""
    return _program(f"[ -d {quote(directory)} ] || exit 1; cat {quote(directory)}/made 2>/dev/null; exit 0")


def save(file: str) -> bytes:
    """Write the rest of the input to a file that nobody else may read."""
    return _program(f"umask 077; exec cat >{quote(file)}")


def is_directory(path: str) -> bytes:
    """Succeed where ``path`` is a directory."""
    return _program(f"[ -d {quote(path)} ]")


def _program(text: str) -> bytes:
    return f"{{\n{text}\n}}".encode("utf-8", "surrogateescape")
