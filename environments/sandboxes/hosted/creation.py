"""Asking a provider for a sandbox: so many at a time, again after a pause, and never twice."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from environments.errors import SandboxError

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0

Made = TypeVar("Made")
Discard = Callable[[], Awaitable[None]]


class TryAgain(SandboxError):
    """The provider has no room or no answer now. ``lost`` where it may have made one nevertheless."""

    def __init__(self, message: str, *, lost: bool = False, pause: float | None = None) -> None:
        self.lost = lost
        self.pause = pause
        super().__init__(message)


class Creation:
    """Bounds how many requests are under way and how fast refused ones come back."""

    def __init__(self, at_a_time: int, patience: float = 900.0, first_pause: float = _FIRST_PAUSE) -> None:
        """``patience``: seconds after which a request that is still refused fails."""
        self._slots = asyncio.Semaphore(at_a_time)
        self._patience = patience
        self._first_pause = first_pause

    async def run(self, make: Callable[[], Awaitable[Made]], discard: Discard) -> Made:
        """Call ``make`` until it succeeds or raises something other than ``TryAgain``.

        ``discard`` ends what a request made whose answer was lost, or that was cancelled on its way.
        While it waits for its next turn a request holds no slot.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        attempt = 0
        while True:
            try:
                async with self._slots:
                    return await self._once(make, discard)
            except TryAgain as refusal:
                pause = self._pause(attempt, refusal)
                if loop.time() + pause > deadline:
                    raise SandboxError(f"{refusal} (tried {attempt + 1} times)") from refusal
                logger.info("%s; trying again in %.1f s", refusal, pause)
            attempt += 1
            await asyncio.sleep(pause)

    async def _once(self, make: Callable[[], Awaitable[Made]], discard: Discard) -> Made:
        try:
            return await make()
        except BaseException as error:  # cancelled, too: what may have been made is ended
            if not isinstance(error, TryAgain) or error.lost:
                await asyncio.shield(asyncio.ensure_future(discard()))
            raise

    def _pause(self, attempt: int, refusal: TryAgain) -> float:
        longest = min(self._first_pause * 2.0 ** min(attempt, 20), _LONGEST_PAUSE)
        return max(refusal.pause or 0.0, longest * random.uniform(0.5, 1.0))
