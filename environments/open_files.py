"""How many files, sockets and processes this one may hold open: every sandbox and connection takes a few.

The soft limit is low on most systems (1024), for the sake of old programs that cannot count further. A run
that the command line starts raises it for itself; what runs in its sandboxes has the old one.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from contextvars import ContextVar

MOST = 65536
"""More would slow down programs that close every number up to the limit."""

PER_ROLLOUT = 12
"""A local sandbox holds six and a command in it three more; the rest is for models and tools."""

_OWN = 200
"""What a run holds besides its rollouts: libraries, stores, threads and servers."""

_lowered: ContextVar[int | None] = ContextVar("limit_of_sandboxed_processes", default=None)


@contextlib.contextmanager
def more_open_files() -> Iterator[int]:
    """Raise the soft limit as far as the hard one allows, at most to ``MOST``; the limit that holds then.

    The old one is back afterwards. Nothing changes where it cannot be raised.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield MOST if soft == resource.RLIM_INFINITY else soft
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a container's rules may forbid it
        yield soft
        return
    token = _lowered.set(soft)
    try:
        yield wanted
    finally:
        _lowered.reset(token)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def limit_inside() -> int | None:
    """The soft limit that processes in sandboxes are to have; None where they inherit the right one."""
    return _lowered.get()


def shortage(limit: int, rollouts: int) -> str:
    """What to say where so many rollouts at once may need more than ``limit``; empty where they do not."""
    wanted = _OWN + PER_ROLLOUT * rollouts
    if wanted <= limit:
        return ""
    return (
        f"{rollouts} rollouts at once may need {wanted} open files, but the hard limit is {limit}, room for "
        f"about {max(1, (limit - _OWN) // PER_ROLLOUT)}: raise it (ulimit -Hn), or run fewer at once"
    )
