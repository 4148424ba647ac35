"""What the machine cannot give is no doing of a sandbox's: such failures are told apart, and waited for."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from environments.errors import MachineShortage, ProcessShortage, SandboxError
from environments.waiting import waiting

T = TypeVar("T")

_OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS)
_PASSING = (errno.EAGAIN, errno.EMFILE, errno.ENFILE)
"""What a guardian may lack while it builds a sandbox that would work at another time."""

_PATIENCE = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@contextmanager
def shortage_is_ours() -> Iterator[None]:
    """What this process cannot get from the kernel is not the sandbox's doing: ``MachineShortage``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _OURS:
            raise
        raise MachineShortage(
            f"the framework cannot open what a sandbox needs: {error.strerror}; a larger `ulimit -n` may help"
        ) from error


def building_failed(text: str, number: int | None) -> SandboxError:
    """Why a sandbox was not built, as its guardian told."""
    if number == errno.EAGAIN:
        return ProcessShortage()
    return MachineShortage(text) if number in _PASSING else SandboxError(text)


async def until_there_are_processes(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again where the machine allowed no process for it, which then has not begun.

    ``ProcessShortage`` where that does not change for a while.
    """
    deadline = time.monotonic() + _PATIENCE
    pause = _FIRST_PAUSE
    while True:
        try:
            return await attempt()
        except ProcessShortage:
            if time.monotonic() > deadline:
                raise
        with waiting():
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, _LONGEST_PAUSE)
