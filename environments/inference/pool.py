"""Which server takes a call, and who waits.

Every server has a limit for training calls and another for evaluation calls. A caller gets a lease on
one slot. Freed slots are handed straight to the caller that has waited longest, so nobody is overtaken.
Only running calls are waited for without limit (each has its own deadline); a server that is down is
waited for no longer than the caller has patience.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from environments.inference.health import Health, Permit

Split = Literal["train", "eval"]
_SPLITS: tuple[Split, ...] = ("train", "eval")


class NoServerAvailable(Exception):
    """All servers were down, or paused by their own wish, for longer than the caller would wait."""

    def __init__(self, retry_after: float | None) -> None:
        self.retry_after = retry_after
        super().__init__("no server available")


@dataclass(eq=False, slots=True)
class Slots:
    """Slots and health of one server."""

    limits: dict[Split, int]
    health: Health = field(default_factory=Health)
    in_flight: dict[Split, int] = field(default_factory=lambda: dict.fromkeys(_SPLITS, 0))
    sessions: int = 0

    def load(self, split: Split) -> float:
        """How full the server is, 1.0 meaning all slots taken. Open conversations count as well."""
        return max(self.in_flight[split], self.sessions) / self.limits[split]

    def free(self, split: Split) -> bool:
        """Whether another call may start."""
        return self.in_flight[split] < self.limits[split]


@dataclass(eq=False, slots=True)
class Lease:
    """A slot of one server, and the leave of its breaker to make one call."""

    slots: Slots
    split: Split
    permit: Permit


@dataclass(eq=False, slots=True)
class _Waiter:
    split: Split
    only: Slots | None
    future: asyncio.Future[Lease | None]


class Pool:
    """The slots of several servers. ``clock`` is monotonic, in seconds."""

    def __init__(self, members: Sequence[Slots], clock: Callable[[], float], rng: random.Random) -> None:
        self._members = list(members)
        self._clock = clock
        self._rng = rng
        self._waiters: dict[Split, deque[_Waiter]] = {split: deque() for split in _SPLITS}
        self._changed: asyncio.Event | None = None

    @property
    def waiting(self) -> int:
        """Callers that wait for a slot."""
        return sum(len(queue) for queue in self._waiters.values())

    async def acquire(
        self,
        split: Split,
        *,
        preferred: Slots | None = None,
        avoid: Collection[Slots] = (),
        patience: float = 0.0,
        pause_patience: float = 0.0,
    ) -> Lease:
        """A slot, on ``preferred`` while that server is well; ``avoid`` only if there is no other.

        ``patience`` is how long to wait while every server is down, ``pause_patience`` how long while
        they want no calls. Raises ``NoServerAvailable``.
        """
        began = self._clock()
        while True:
            now = self._clock()
            usable = [s for s in self._members if s.health.admissible(now)]
            candidates = self._candidates(usable, preferred, avoid)
            if candidates:
                lease = self._take(candidates, split, now)
                lease = lease or await self._queue(split, candidates)
                if lease:
                    return lease
                continue
            self._release_queue()
            paused = any(s.health.paused(now) for s in self._members)
            end = began + (max(patience, pause_patience) if paused else patience)
            wake = self._next_change(now)
            if now >= end:
                raise NoServerAvailable(wake - now if wake is not None else None)
            spread = 1 + 0.1 * self._rng.random()  # so that not all of them come back at once
            await self._wait_for_change(min(end - now, (wake - now) * spread if wake else end - now))

    def release(self, lease: Lease) -> None:
        """Give a slot back; the outcome must have been reported to the server's health before."""
        self._pass_on(lease.slots, lease.split)
        self._announce()

    def recovered(self) -> None:
        """A server is back: let everybody who waits for a slot choose anew."""
        self._release_queue()

    def _announce(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    def least_loaded(self, members: Iterable[Slots], split: Split) -> Slots:
        """The emptiest server; among equals a random one."""
        return min(members, key=lambda s: (s.load(split), self._rng.random()))

    def _candidates(
        self, usable: list[Slots], preferred: Slots | None, avoid: Collection[Slots]
    ) -> list[Slots]:
        fresh = [s for s in usable if s not in avoid]
        return [preferred] if preferred is not None and preferred in fresh else fresh or usable

    def _take(self, candidates: list[Slots], split: Split, now: float) -> Lease | None:
        free = [s for s in candidates if s.free(split)]
        if not free:
            return None
        chosen = self.least_loaded(free, split)
        permit = chosen.health.admit(now)
        if permit is None:
            return None
        chosen.in_flight[split] += 1
        return Lease(chosen, split, permit)

    async def _queue(self, split: Split, candidates: list[Slots]) -> Lease | None:
        """Wait for a slot; None when the choice should be made anew."""
        future: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()
        waiter = _Waiter(split, candidates[0] if len(candidates) == 1 else None, future)
        self._waiters[split].append(waiter)
        try:
            return await future
        except asyncio.CancelledError:
            if waiter in self._waiters[split]:
                self._waiters[split].remove(waiter)
            if future.done() and not future.cancelled() and (lease := future.result()) is not None:
                lease.slots.health.abandoned(lease.permit, self._clock())
                self.release(lease)
            raise

    def _pass_on(self, slots: Slots, split: Split) -> None:
        """Hand a freed slot to the longest waiter that may use it."""
        slots.in_flight[split] -= 1
        now = self._clock()
        queue = self._waiters[split]
        if not slots.health.admissible(now):
            self._release_queue(slots)
            return
        for waiter in queue:
            if not waiter.future.done() and (waiter.only is None or waiter.only is slots):
                permit = slots.health.admit(now)
                if permit is not None:
                    queue.remove(waiter)
                    slots.in_flight[split] += 1
                    waiter.future.set_result(Lease(slots, split, permit))
                return

    def _release_queue(self, slots: Slots | None = None) -> None:
        """Let waiters choose anew: those of one server that is no longer usable, or all."""
        for queue in self._waiters.values():
            for waiter in [w for w in queue if slots is None or w.only is slots or w.only is None]:
                queue.remove(waiter)
                if not waiter.future.done():
                    waiter.future.set_result(None)

    def _next_change(self, now: float) -> float | None:
        times = [t for s in self._members if (t := s.health.next_change(now)) is not None]
        return min(times, default=None)

    async def _wait_for_change(self, seconds: float) -> None:
        if self._changed is None:
            self._changed = asyncio.Event()
        event = self._changed
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await event.wait()
        except TimeoutError:
            return
