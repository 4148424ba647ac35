"""Which processes of a sandbox serve something: read inside, understood here.

The sandbox only prints what its ``/proc`` says. A machine that the agent rules may lie; then its processes
live on, as those of a service would, and the tests run beside hostile neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

LISTING = r"""
export LC_ALL=C
echo "self $$"
for p in /proc/[0-9]*; do
  n=${p#/proc/}
  read -r line 2>/dev/null <"$p/stat" || continue
  echo "stat $line"
done
for f in tcp tcp6 udp udp6; do
  [ -r "/proc/net/$f" ] && while read -r line; do echo "$f $line"; done <"/proc/net/$f"
done
[ -r /proc/net/unix ] && while read -r line; do echo "unix $line"; done </proc/net/unix
ls -ln /proc/[0-9]*/fd 2>/dev/null | while read -r line; do
  case $line in /proc/*) echo "of $line";; *socket:*) echo "fd $line";; esac
done
:
"""
"""POSIX shell and ``ls``: every image has them."""

_STAT = re.compile(r"stat (\d+) \((.*)\) (\S) (-?\d+) (?:-?\d+ (-?\d+))?")
_OWNER = re.compile(r"of /proc/(\d+)/fd:")
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_TCP_LISTEN = "0A"
_UNIX_ACCEPTS = 0x10000
_ROOTS = (0, 1)


@dataclass(slots=True)
class ProcessTable:
    """Processes of one sandbox."""

    names: dict[int, str] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    listeners: set[int] = field(default_factory=set)
    sessions: dict[int, int] = field(default_factory=dict)
    own: int = 0
    """The process that printed the table."""

    first_session_is_ours: bool = False
    """Whether nothing of the agent's can be in the session of the first process."""

    def living(self) -> set[int]:
        """All but the first process, what helps it, and those that took the picture."""
        return set(self.names) - {1} - self._helpers() - self._family_of_own()

    def served_by(self) -> set[int]:
        """Processes that a service consists of: each listener, what it started, and its ancestors below
        the first process (but not what else those started)."""
        found: set[int] = set()
        for listener in self.listeners & self.living():
            found |= {listener} | self.descendants(listener) | self.ancestors(listener)
        return found & self.living()

    def ancestors(self, process: int) -> set[int]:
        """Everything above a process, without the first one. A made-up circle ends."""
        found: set[int] = set()
        parent = self.parents.get(process, 0)
        while parent not in _ROOTS and parent in self.parents and parent not in found:
            found.add(parent)
            parent = self.parents[parent]
        return found

    def descendants(self, top: int) -> set[int]:
        """Everything below a process."""
        found: set[int] = set()
        todo = [top]
        while todo:
            parent = todo.pop()
            below = [pid for pid, p in self.parents.items() if p == parent and pid not in found]
            found.update(below)
            todo += below
        return found

    def _helpers(self) -> set[int]:
        if not self.first_session_is_ours:
            return set()
        return {pid for pid, session in self.sessions.items() if session == self.sessions.get(1) == 1}

    def _family_of_own(self) -> set[int]:
        return {self.own} | self.descendants(self.own) | self.ancestors(self.own)


def parse_listing(text: str, *, first_session_is_ours: bool = False) -> ProcessTable:
    """The table that ``LISTING`` printed; lines that make no sense are passed over."""
    table = ProcessTable(first_session_is_ours=first_session_is_ours)
    sockets: dict[str, set[int]] = {}
    listening: set[str] = set()
    owner = 0
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "self" and rest.isdigit():
            table.own = int(rest)
        elif word == "stat" and (found := _STAT.match(line)):
            pid, state = int(found[1]), found[3]
            if state not in "ZX":
                table.names[pid], table.parents[pid] = found[2], int(found[4])
                if found[5] is not None:
                    table.sessions[pid] = int(found[5])
                if state in "Tt":
                    table.stopped.add(pid)
        elif word == "of" and (found := _OWNER.match(line)):
            owner = int(found[1])
        elif word == "fd" and (found := _SOCKET.search(rest)):
            sockets.setdefault(found[1], set()).add(owner)
        elif word in ("tcp", "tcp6", "udp", "udp6", "unix"):
            listening |= set(_listening(word, rest.split()))
    for inode in listening:
        table.listeners |= sockets.get(inode, set())
    return table


def _listening(kind: str, fields: list[str]) -> Iterable[str]:
    """Inode of a socket that waits for others, from a line of ``/proc/net``."""
    if kind == "unix":
        if len(fields) >= 7 and _hexadecimal(fields[3]) & _UNIX_ACCEPTS:
            yield fields[6]
    elif len(fields) >= 10 and ":" in fields[1]:
        port = _hexadecimal(fields[1].rpartition(":")[2])
        if fields[3] == _TCP_LISTEN or (kind.startswith("udp") and port):
            yield fields[9]


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
