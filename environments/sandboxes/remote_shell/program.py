"""Shell programs that start commands.

A program is one compound command in POSIX shell, sent to ``sh`` over a stream of its own, so that
neither environment nor commands show in process lists, and a program cut short does not run at all.

Every process of a command bears a *mark*, a number of sixteen digits, in two places that children
inherit: the environment variable ``HERMES_SANDBOX``, and the soft and hard limit of file locks
(``RLIMIT_LOCKS``), which no kernel since 2.4 reads but all of them keep. The second survives
``env -i``, ``setsid`` and double forks, and ``/proc/PID/limits`` shows it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MARK_VARIABLE = "HERMES_SANDBOX"
LIMIT_NAME = "Max file locks"
"""How ``/proc/PID/limits`` calls the limit that carries the mark."""

_COUNTER_DIGITS = 6
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

BOOTSTRAP = 'sh -c \'read -r n; eval "$(head -c "$n")"\''
"""Reads the length of a program, then the program, from its input, and runs it; the rest of the
input is the program's. Understood alike by every login shell."""


def new_family() -> str:
    """The ten leading digits that all marks of one sandbox share."""
    return f"7{secrets.randbelow(10**9):09d}"


def mark_of(family: str, number: int) -> str:
    """The mark of one command; numbers come round again after a million."""
    return f"{family}{number % 10**_COUNTER_DIGITS:0{_COUNTER_DIGITS}d}"


def framed(program: bytes) -> bytes:
    """A program as ``BOOTSTRAP`` reads it."""
    return b"%d\n%s" % (len(program), program)


def set_mark(mark: str) -> str:
    """Shell text that marks the shell itself and all that it starts, by the limit."""
    return f"ulimit -w {mark} 2>/dev/null || ulimit -x {mark} 2>/dev/null"


def process_limit(processes: int) -> str:
    """Shell text that limits processes where only the kernel's limit per user is at hand.

    It counts all of a user's, not those of a sandbox, so the limit is what the whole machine runs at
    this moment and the sandbox's share on top of it.
    """
    return (
        f"read -r a b c t e </proc/loadavg && t=$((${{t#*/}} + {processes}))\n"
        '{ ulimit -u "$t" || ulimit -p "$t"; } 2>/dev/null\n'
        "unset a b c t e"
    )


def quote(text: str) -> str:
    """A shell word. ``ValueError`` for NUL, which no shell can hold."""
    if "\0" in text:
        raise ValueError("embedded null byte")
    return "'" + text.replace("'", "'\"'\"'") + "'"


@dataclass(frozen=True, slots=True)
class Start:
    """How to start one command."""

    mark: str
    directory: str
    environment: Mapping[str, str] = field(default_factory=dict)
    merge: bool = False
    stdin: bool = False
    prelude: str = ""
    """Shell text of the machine's own that runs before all else, such as limits."""
    revoked: str = ""
    """A directory in which a file named like the mark forbids the program to run."""


def for_shell(text: str, start: Start) -> bytes:
    """A program that runs shell text with bash, or with sh where there is none."""
    run = f"exec {_setter(start)}"
    return _program(
        f"set -- {quote(text)}\n"
        f'if command -v bash >/dev/null 2>&1; then {run}bash -c "$1"; else {run}sh -c "$1"; fi',
        start,
    )


def for_arguments(arguments: Sequence[str], start: Start) -> bytes:
    """A program that runs an argument vector."""
    if not arguments:
        raise ValueError("an empty command cannot be run")
    return _program(f"exec {_setter(start)}{' '.join(map(quote, arguments))}", start)


def for_script(script: str, arguments: Sequence[str], start: Start) -> bytes:
    """A program that is ``script`` itself, in the shell that reads it, with positional parameters."""
    return _program(f"set -- {' '.join(map(quote, arguments))}\n{script}", start)


def _program(last: str, start: Start) -> bytes:
    named = {MARK_VARIABLE: start.mark, **start.environment}
    directory = quote(start.directory)
    lines = [
        "{",
        start.prelude,
        set_mark(start.mark),
        # Marked first: whoever revokes and then looks for the mark misses none that began meanwhile.
        f"[ -e {quote(start.revoked)}/{start.mark} ] && exit 137" if start.revoked else "",
        *(f"export {name}={quote(value)}" for name, value in named.items() if _IDENTIFIER.match(name)),
        f"cd {directory} || {{ [ -e {directory} ] && exit 126; exit 127; }}",
        "exec 2>&1" if start.merge else "",
        "" if start.stdin else "exec </dev/null",
        last,
        "}",
    ]
    return "\n".join(line for line in lines if line).encode("utf-8", "surrogateescape")


def _setter(start: Start) -> str:
    """``env`` for names such as ``FOO.BAR``, which are no variables of a shell."""
    odd = [f"{name}={value}" for name, value in start.environment.items() if not _IDENTIFIER.match(name)]
    if any(entry.startswith("=") for entry in odd):
        raise ValueError("a variable of the environment has no name")
    return f"env {' '.join(map(quote, odd))} " if odd else ""
