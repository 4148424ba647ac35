"""Sends groups that wait on disk until the API has confirmed each, or refused it for good."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from environments.scheduler import backoff
from environments.trajectory_api.client import Rejected, Unreachable
from environments.workflows.serve_ledger import SENT, Spooled
from environments.workflows.serve_link import REMIND, Link, refused

logger = logging.getLogger(__name__)

SENDERS = 4
"""Groups on the wire at the same time."""

LONGEST_PAUSE = 30.0


class Sender:
    """Takes spooled groups; ``settled`` learns of each what became of it."""

    def __init__(self, link: Link, settled: Callable[[Spooled, str, str], None]) -> None:
        self.link, self.settled = link, settled
        self.waiting = 0
        """Members of the groups that are not yet confirmed."""
        self.retries = 0
        self._queue: asyncio.Queue[Spooled] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._complained = -math.inf

    def start(self) -> None:
        """Begin to send."""
        self._tasks = [asyncio.ensure_future(self._work()) for _ in range(SENDERS)]

    def add(self, spooled: Spooled) -> None:
        """Send a group as soon as may be."""
        self.waiting += spooled.members
        self._queue.put_nowait(spooled)

    def check(self) -> None:
        """Raise what ended the sending, such as a refused token."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def clear(self) -> list[Spooled]:
        """Give up all that waits (another training run has begun)."""
        dropped = []
        while not self._queue.empty():
            dropped.append(self._queue.get_nowait())
        self.waiting -= sum(spooled.members for spooled in dropped)
        return dropped

    async def stop(self) -> None:
        """End sending; what is not confirmed stays in the spool."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            spooled = await self._queue.get()
            outcome, text = await self._send(spooled)
            if outcome == SENT:
                self.link.confirmed(spooled.members)
            self.waiting -= spooled.members
            self.settled(spooled, outcome, text)

    async def _send(self, spooled: Spooled) -> tuple[str, str]:
        """Outcome and explanation of a group, after as many tries as it takes."""
        training = self.link.training
        assert training is not None
        run = training.run
        body = await asyncio.to_thread(spooled.path.read_bytes)
        failures = 0
        while True:
            training = self.link.training
            if training is None or training.run != run:
                return "other_training_run", "another training run has begun"
            try:
                complete = body[:-1] + b',"env_id":%d}' % training.env_id
                await self.link.client.send_group(complete, spooled.key)
                return SENT, ""
            except Unreachable:
                self.link.away = True
                pause = backoff(0.5, failures, LONGEST_PAUSE)
            except Rejected as rejected:
                if rejected.status in (401, 403):
                    raise refused(self.link.client.url, rejected) from rejected
                unknown = rejected.status in (404, 409)  # the API has lost us; the link joins again
                if not rejected.temporary and not unknown:
                    return "refused", str(rejected)
                if not unknown and rejected.status != 429:
                    self._complain(rejected)
                pause = rejected.retry_after or backoff(0.5, failures, LONGEST_PAUSE)
            self.retries += 1
            failures += 1
            await self.link.pause(pause)

    def _complain(self, rejected: Rejected) -> None:
        """Say, not too often, why groups do not leave."""
        if time.monotonic() - self._complained >= REMIND:
            self._complained = time.monotonic()
            self.link.tell(f"{self.link.client.url} takes no groups: {rejected}; they wait on disk")
