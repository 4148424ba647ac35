"""The jobs of a server, in memory and on disk at once: what is answered has been written."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.errors import StoreError
from environments.trajectory_api import writes
from environments.trajectory_api.job import LEASE, Batch, Environment, Group, Job
from environments.trajectory_api.messages import RegisterEnv, Registration
from environments.trajectory_api.refusals import Refused
from environments.trajectory_api.store import NotStored, Store
from environments.trajectory_api.wire import WireGroup

KEPT_RUNS = 3
"""Runs set aside whose data is kept, per namespace."""

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server accepts. Bytes, groups, seconds."""

    body: int = 128 << 20
    """Longest body, also after decompression."""
    queue: int = 4096
    """Waiting groups at which clients that understand it are asked to wait (429)."""
    lease: float = LEASE
    stall: float = 60.0
    """Longest pause of a client in the middle of a request, or in reading a reply."""
    keep: bool = False
    """Whether groups stay stored, for ``/groups``, when the trainer is done with them."""


@dataclass
class Service:
    """Everything the HTTP layer calls. ``counters`` are for ``/metrics``."""

    store: Store
    limits: Limits = field(default_factory=Limits)
    counters: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self.started_at = time.time()
        for namespace, run_id, data in self.store.load():
            self.jobs[namespace] = self._restore(run_id, data)

    def _restore(self, run_id: str, data: dict[str, Any]) -> Job:
        job = Job.restore(run_id, data, time.monotonic(), self.limits.lease)
        job.queue = [_group(row) for row in self.store.load_groups(run_id)]
        job.latest = job.queue[-1].id if job.queue else None
        out: dict[int, list[Group]] = {}
        for row in self.store.load_groups(run_id, "out"):
            out.setdefault(row[5], []).append(_group(row))
        for batch_id, step, size, consumer, state, at in self.store.load_batches(run_id):
            if state == "out" and consumer is None:
                state = "undelivered"  # the server died while it was being sent
            job.batches[batch_id] = Batch(batch_id, out.get(batch_id, []), size, step, consumer, state, at)
        return job

    def job(self, namespace: str) -> Job:
        """The current job of a namespace; an empty one where no trainer has registered."""
        return self.jobs.get(namespace) or Job(lease=self.limits.lease)

    def _lock(self, namespace: str) -> asyncio.Lock:
        return self._locks.setdefault(namespace, asyncio.Lock())

    # The trainer.

    async def register(self, namespace: str, registration: Registration) -> tuple[Job, bool]:
        """Begin a run, or go on with the one that has the same parameters (then True)."""
        if not _NAMESPACE.fullmatch(namespace):
            raise Refused("namespace", "1 to 64 letters, digits, dots, dashes and underscores are needed")
        async with self._lock(namespace):
            known = self.jobs.get(namespace)
            if known is not None and known.same_run(registration):
                return known, True
            job = Job.begin(registration, self.limits.lease)
            steps = [writes.archive_run(known.run_id, KEPT_RUNS)] if known is not None else []
            await self.store.write(
                writes.together(*steps, writes.put_run(namespace, job.run_id, job.snapshot()))
            )
            self.jobs[namespace] = job
            return job, False

    async def reset(self, namespace: str) -> None:
        """Set the current run aside."""
        async with self._lock(namespace):
            known = self.jobs.get(namespace)
            if known is not None:
                await self.store.write(writes.archive_run(known.run_id, KEPT_RUNS))
                del self.jobs[namespace]

    async def next_batch(
        self,
        namespace: str,
        *,
        consumer: str | None = None,
        acknowledge: int | None = None,
        version: int | None = None,
    ) -> Batch | None:
        """Hand the next batch out; None where too little waits."""
        async with self._lock(namespace):
            job = self.jobs[namespace]
            if acknowledge is not None:
                await self._acknowledge(job, acknowledge)
            done = job.finished_batches() if consumer is None else []
            before = (job.started, len(job.batches))
            batch, stale = job.next_batch(time.monotonic(), consumer=consumer, version=version)
            new = batch is not None and len(job.batches) > before[1]
            if new and batch is not None:
                batch.at = time.time()
            if not (new or stale or done or not before[0]):
                return batch
            steps = [self._finish(job, one) for one in done]
            steps += [
                writes.drop_groups(group.id for group in stale),
                writes.put_run(namespace, job.run_id, job.snapshot()),
            ]
            if new and batch is not None:
                steps.append(writes.put_batch(job.run_id, batch, [group.id for group in batch.groups]))
            try:
                await self.store.write(writes.together(*steps))
            except StoreError:
                if new and batch is not None:
                    job.undo(batch)
                raise
            for one in done:
                job.finish(one)
            self.counters["groups_stale", namespace] += len(stale)
            if new and batch is not None:
                self.counters["batches_handed_out", namespace] += 1
                self.counters["groups_handed_out", namespace] += len(batch.groups)
            return batch

    async def acknowledge(self, namespace: str, batch_id: int) -> None:
        """A trainer has safely taken a batch over; it will not be handed out again."""
        async with self._lock(namespace):
            await self._acknowledge(self.job(namespace), batch_id)

    async def _acknowledge(self, job: Job, batch_id: int) -> None:
        if batch_id not in job.batches and 0 < batch_id < job.next_batch_id:
            return  # acknowledged before; the reply was lost
        batch = job.batch(batch_id)
        await self.store.write(self._finish(job, batch))
        job.finish(batch)

    def _finish(self, job: Job, batch: Batch) -> writes.Write:
        return writes.finish_batch(
            job.run_id, batch.id, [group.id for group in batch.groups], keep=self.limits.keep
        )

    async def delivered(self, namespace: str, batch: Batch, *, whole: bool) -> None:
        """A batch has been sent, to the end or not."""
        job = self.job(namespace)
        if batch.consumer is not None or batch.id not in job.batches or batch.state != "out":
            return
        batch.state = "delivered" if whole else "undelivered"
        if not whole:
            self.counters["batches_undelivered", namespace] += 1
        await self.store.write(writes.set_batch_state(job.run_id, batch.id, batch.state))

    async def requeue(self, namespace: str, batch_id: int) -> None:
        """Hand a batch out once more, at the wish of the operator."""
        async with self._lock(namespace):
            job = self.job(namespace)
            batch = job.batch(batch_id)
            ids = [group.id for group in batch.groups]
            await self.store.write(writes.requeue_batch(job.run_id, batch_id, ids))
            job.requeue(batch)

    # Environments.

    async def register_environment(self, namespace: str, request: RegisterEnv) -> Environment:
        """Take an environment in."""
        job = self.job(namespace)
        environment = job.register_environment(request, time.monotonic())
        await self._save(namespace, job)
        return environment

    async def disconnect(self, namespace: str, env_id: int) -> None:
        """An environment leaves. Raises ``Refused`` where it is not known; -1 is the latest one."""
        job = self.job(namespace)
        if env_id == -1 and job.environments:
            env_id = job.environments[-1].env_id
        job.environment(env_id).connected = False
        await self._save(namespace, job)

    async def _save(self, namespace: str, job: Job) -> None:
        await self.store.write(writes.put_run(namespace, job.run_id, job.snapshot()))

    async def add(self, namespace: str, groups: Sequence[WireGroup], *, listed: bool = False) -> int:
        """Take groups, all or none; how many of them had not been taken before.

        Raises ``Refused``, whose path begins with the group's position where they are ``listed``.
        """
        job = self.job(namespace)
        now = time.monotonic()
        for index, group in enumerate(groups):
            try:
                job.check(group.env_id, group.members)
            except Refused as refusal:
                raise (refusal.inside(index) if listed else refusal) from None
        for env_id in {group.env_id for group in groups if group.env_id is not None}:
            job.heard_of(env_id, now)
        ids = await self.store.write(
            writes.add_groups(job.run_id, groups), growing=sum(len(group.payload) for group in groups)
        )
        for group, group_id in zip(groups, ids, strict=True):
            if group_id is None:
                self.counters["groups_duplicate", namespace] += 1
                continue
            if self.jobs.get(namespace) is job:
                job.add(Group(group_id, group.members, group.rows, group.env_id, group.policy_version))
            self.counters["groups_received", namespace] += 1
            self.counters["tokens_received", namespace] += group.tokens
        return len(ids) - ids.count(None)

    async def payload(self, group_id: int) -> bytes:
        """JSON text of a group."""
        return await asyncio.to_thread(self.store.payload, group_id)

    async def payload_if_stored(self, group_id: int) -> bytes | None:
        """JSON text of a group with its number, None where the trainer has finished it meanwhile."""
        try:
            text = await self.payload(group_id)
        except NotStored:
            return None
        return text[:-1] + b',"group_id":%d}' % group_id

    async def stored_groups(self, namespace: str, after: int, limit: int) -> list[int]:
        """Numbers of the current run's groups that are stored, from the first above ``after``."""
        run_id = self.job(namespace).run_id
        return await asyncio.to_thread(self.store.group_numbers, run_id, after, limit)


def _group(row: tuple[Any, ...]) -> Group:
    return Group(id=row[0], size=row[1], rows=row[2], env_id=row[3], policy_version=row[4])
