"""Process 1 of a container: it keeps the container alive, and what serves the container going.

Nothing inside can stop or kill it, and nothing else is so safe. An engine that starts a command puts a
process into the container; an agent that stops that process holds up the engine as well, which then
neither runs, lists nor removes anything there. Only process 1 can still help.
"""

from __future__ import annotations

_PROGRAM = """\
trap '' HUP INT QUIT TERM USR1 USR2 ALRM
trap '[ "$finished" ] || exec /bin/sh -c "eval \\"\\$0\\"" "$0" "$1"' EXIT
[ "$BASH_VERSION" ] || trap 'stirred=false' CHLD
clock() { read -r now rest < /proc/uptime; now=${now%.*}; }
look() {
  all=
  while IFS= read -r part || [ "$part" ]; do all="$all $part"; done < "$1/stat" || return 1
  name=${all#*\\(}
  set -- ${all##*) }
  state=$1 parent=$2
}
awaken() {
  seen=$stopped stopped=
  for directory in /proc/[0-9]*; do
    pid=${directory#/proc/}
    look "$directory" || continue
    case $state$parent:$pid:$name in
    [Tt]0:*:runc*|[Tt]0:*:crun*|[Tt]0:*:youki*|T1:"$nap":*) stopped="$stopped $pid";;
    *) continue;;
    esac
    case "$seen " in *" $pid "*) kill -CONT "$pid";; esac
  done
  [ "$stopped" ]
}
pause() {
  if [ "$BASH_VERSION" ]; then read -r -t "$1" part; [ $? = 1 ] || return; fi
  [ "$nap" ] && kill -KILL "$nap"
  sleep "$1" & nap=$!
  while stirred=; look "/proc/$nap" && [ "$state" != T ]; do
    ${stirred:-wait} "$nap"
    case $? in 0|127) return;; esac
  done
}
exec 2>/dev/null
nap= stopped= stops=0
clock; end=$((now + $1))
while clock; [ "$now" -lt "$end" ]; do
  if awaken; then stops=$((stops + 1)) length=1; else stops=0 length=5; fi
  [ $stops -lt 3 ] || { kill -KILL -1; stops=0; }
  [ $length -lt $((end - now)) ] || length=$((end - now))
  pause $length
done
finished=1
exit 0
"""
"""POSIX ``sh``, as dash, bash and BusyBox have it. Argument: seconds after which it ends by itself.

It collects orphans and ignores signals. Every few seconds it looks for processes of the engine (their
parent is outside, 0, and they still have its name) that are stopped. What is still stopped at the next
look is told to go on; what is stopped again then has somebody behind it who does that on purpose, so all
but process 1 is killed. It leaves others alone: grading stops processes, too, before it kills them.

A ``sleep`` that is stopped itself ends the pause at once. ``${stirred:-wait}`` is one command, so that a
signal cannot come between the look at the variable and the waiting. bash does not hear of stopped
children; it can wait without a ``sleep``, on an input that nobody writes to.

Where it cannot fork (the agent used up all processes), ``sh`` would exit; the trap starts it anew in
place.
"""


def init_command(seconds: int) -> list[str]:
    """Argument vector of process 1 of a container that may live so long. It needs an open standard input."""
    return ["/bin/sh", "-c", 'eval "$0"', _PROGRAM, str(seconds)]
