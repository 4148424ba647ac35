"""One call with its retries: over the servers of a pool, within its deadline.

The rule of time: ``timeout`` of the server bounds the time that requests of the call are in flight,
all tries together. Waiting does not count. Waiting for our own slots is not bounded, since every call
ahead is; waiting for rate limits and back-offs together may take as long again as ``timeout``.

An own small loop rather than tenacity: what comes next depends on the servers (another one may be free
at once, or all may be paused), which a decorator around a single call cannot see.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from environments.errors import ServerUnavailable
from environments.inference.model_server import ModelServer, Reply, Request
from environments.inference.pool import Lease, NoServerAvailable, Pool, Slots, Split
from environments.inference.transport import Transport
from environments.inference.types import CallTiming
from environments.waiting import waiting


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds between tries: doubling from ``first`` to ``longest``, with jitter of a half."""

    first: float = 1.0
    longest: float = 60.0

    def delay(self, tries: int, rng: random.Random) -> float:
        """How long to wait after that many failed tries."""
        return float(min(self.longest, self.first * 2 ** min(tries - 1, 30))) * rng.uniform(0.5, 1.0)


@dataclass(slots=True)
class Answer(Generic[Reply]):
    """What a call brought, and from where."""

    reply: Reply
    server: ModelServer
    timing: CallTiming


@dataclass(slots=True)
class _Progress:
    """How far a call has come."""

    timing: CallTiming
    tries: int = 0
    in_flight: float = 0.0
    delayed: float = 0.0
    last: ModelServer | None = None
    failed: set[Slots] = field(default_factory=set)
    """Servers that have failed the call since its last back-off."""
    error: ServerUnavailable | None = None


@dataclass(slots=True)
class Caller:
    """Makes calls over the servers of a pool."""

    pool: Pool
    servers: Mapping[Slots, ModelServer]
    transport: Transport
    clock: Callable[[], float]
    rng: random.Random
    backoff: Backoff = field(default_factory=Backoff)

    async def call(
        self, request: Request[Reply], split: Split, preferred: ModelServer | None
    ) -> Answer[Reply]:
        """The answer of some server. Raises ``ModelError``; ``ServerUnavailable`` after all tries."""
        progress = _Progress(CallTiming(started_at=time.time()))
        while True:
            lease = await self._lease(progress, split, preferred)
            if lease is None:
                continue
            server = progress.last = self.servers[lease.slots]
            began = self.clock()
            budget = server.config.timeout - progress.in_flight
            try:
                reply, first_token_at = await server.send(self.transport, request, lease, self.clock, budget)
            except ServerUnavailable as error:
                self.pool.release(lease)
                progress.in_flight += self.clock() - began
                await self._after_failure(progress, server, error)
                continue
            except BaseException:  # cancelled, too: a place in the pool is given back
                self.pool.release(lease)
                raise
            self.pool.release(lease)
            if lease.permit.probe:
                self.pool.recovered()
            self._record(progress, first_token_at, server, split, self.clock() - began)
            return Answer(reply, server, progress.timing)

    def _record(
        self,
        progress: _Progress,
        first_token_at: float | None,
        server: ModelServer,
        split: Split,
        duration: float,
    ) -> None:
        timing = progress.timing
        timing.ended_at = time.time()
        timing.first_token_at = first_token_at
        timing.retries = progress.tries
        server.metrics.record(split, duration, timing)

    async def _lease(self, progress: _Progress, split: Split, preferred: ModelServer | None) -> Lease | None:
        """A slot; None where all servers were down for a back-off's length, which counts as a try."""
        began = self.clock()
        limit = self._limit(progress)
        try:
            with waiting():
                return await self.pool.acquire(
                    split,
                    preferred=preferred.slots if preferred else None,
                    avoid=progress.failed,
                    patience=self.backoff.delay(progress.tries + 1, self.rng),
                    pause_patience=max(0.0, limit - progress.delayed),
                )
        except NoServerAvailable as unavailable:
            progress.delayed += self.clock() - began
            error = progress.error or ServerUnavailable(
                "no model server can be reached", retry_after=unavailable.retry_after
            )
            self._count(progress, error, self._max_retries(progress))
            return None
        finally:
            progress.timing.waiting += self.clock() - began

    async def _after_failure(
        self, progress: _Progress, server: ModelServer, error: ServerUnavailable
    ) -> None:
        """Wait as long as it takes before the next try; raise when there is none."""
        self._count(progress, error, server.config.max_retries)
        if progress.in_flight >= server.config.timeout:
            raise self._final(progress, error)
        server.metrics.retries += 1
        progress.failed.add(server.slots)
        if error.retry_after is not None:
            if progress.delayed + error.retry_after > server.config.timeout:
                raise self._final(progress, error)
            server.slots.health.pause(self.clock() + error.retry_after)
            progress.delayed += error.retry_after
            return
        if self._another_is_usable(progress):
            return
        progress.failed = {server.slots}
        delay = self.backoff.delay(progress.tries, self.rng)
        progress.delayed += delay
        progress.timing.waiting += delay
        with waiting():
            await asyncio.sleep(delay)

    def _count(self, progress: _Progress, error: ServerUnavailable, allowed: int) -> None:
        progress.tries += 1
        progress.error = error
        if progress.tries > allowed:
            raise self._final(progress, error)

    def _final(self, progress: _Progress, error: ServerUnavailable) -> ServerUnavailable:
        if progress.tries <= 1:
            return error
        return ServerUnavailable(
            f"{error} (after {progress.tries} tries)",
            status=error.status,
            body=error.body,
            retry_after=error.retry_after,
        )

    def _another_is_usable(self, progress: _Progress) -> bool:
        now = self.clock()
        return any(s not in progress.failed and s.health.admissible(now) for s in self.servers)

    def _limit(self, progress: _Progress) -> float:
        servers = [progress.last] if progress.last else self.servers.values()
        return float(max(server.config.timeout for server in servers))

    def _max_retries(self, progress: _Progress) -> int:
        servers = [progress.last] if progress.last else self.servers.values()
        return max(server.config.max_retries for server in servers)
