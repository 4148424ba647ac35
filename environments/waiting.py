"""Telling waiting apart from working, so that a rate limit never becomes the model's time-out.

Whoever waits for something that is not the attempt's own doing (a rate limit, a back-off, one of our
own limits) does so inside ``with waiting():``. The attempt's clock counts those spans, however they
overlap, and its deadline moves with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class WaitingClock:
    """Seconds that one attempt has spent waiting, the current wait included."""

    def __init__(self) -> None:
        self._finished = 0.0
        self._depth = 0
        self._since = 0.0

    @property
    def active(self) -> bool:
        """Whether a wait is going on."""
        return self._depth > 0

    @property
    def total(self) -> float:
        """Seconds waited until now."""
        return self._finished + (time.monotonic() - self._since if self._depth else 0.0)

    def enter(self) -> None:
        """A wait begins; overlapping waits count once."""
        if self._depth == 0:
            self._since = time.monotonic()
        self._depth += 1

    def leave(self) -> None:
        """A wait ends."""
        self._depth -= 1
        if self._depth == 0:
            self._finished += time.monotonic() - self._since


_clock: ContextVar[WaitingClock | None] = ContextVar("waiting_clock", default=None)


@contextmanager
def counted(clock: WaitingClock) -> Iterator[None]:
    """Waits inside this block count on ``clock``."""
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """Time spent in this block is waiting, not working."""
    clock = _clock.get()
    if clock is None:
        yield
        return
    clock.enter()
    try:
        yield
    finally:
        clock.leave()


class DeadlineReached(TimeoutError):
    """The time allowed for a piece of work is over."""


@asynccontextmanager
async def deadline(seconds: float | None, clock: WaitingClock | None = None) -> AsyncIterator[None]:
    """Raise ``DeadlineReached`` when the block has *worked* for so long.

    With a clock, what it counts as waiting is added to the time allowed; without one the deadline is
    wall time. None means no deadline. A wait that begins in the last half second may be missed.
    """
    if seconds is None:
        yield
        return
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds - (clock.total if clock else 0.0)
    handle: asyncio.TimerHandle | None = None

    def follow_waits(clock: WaitingClock) -> None:
        nonlocal handle
        if timeout.expired():
            return
        due = end + clock.total
        timeout.reschedule(max(due, loop.time() + 1.0) if clock.active else due)
        handle = loop.call_later(_FOLLOW_INTERVAL, follow_waits, clock)

    try:
        async with asyncio.timeout(seconds) as timeout:
            if clock is not None:
                handle = loop.call_later(min(_FOLLOW_INTERVAL, seconds / 2), follow_waits, clock)
            try:
                yield
            finally:
                if handle is not None:
                    handle.cancel()
    except TimeoutError as error:
        if timeout.expired():
            raise DeadlineReached(f"the time limit of {seconds:g} s is over") from error
        raise


_FOLLOW_INTERVAL = 0.5
"""Seconds between two looks at the clock: far below any sensible deadline, cheap for thousands."""
