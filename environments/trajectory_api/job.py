"""The state of one training job: registration, environments, queue, batches. Pure: time is an argument,
by a clock that never jumps.

What must survive a crash is written by the caller before it is answered (``store.py``); this module
decides, and knows neither disk nor network.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

from environments.trajectory_api.batching import choose, largest_sum
from environments.trajectory_api.messages import RegisterEnv, Registration
from environments.trajectory_api.refusals import Refused

LEASE = 120.0
"""Seconds without a call after which an environment no longer counts."""

MIN_ENV_WEIGHT = 0.01


@dataclass(slots=True)
class Environment:
    """One registered environment."""

    env_id: int
    desired_name: str
    name: str
    max_token_length: int
    weight: float
    group_size: int
    minimum: float | None
    instance: str | None = None
    connected: bool = True
    seen: float = 0.0

    def alive(self, now: float, lease: float) -> bool:
        """Whether it is there: connected, and heard of lately."""
        return self.connected and now - self.seen <= lease


@dataclass(slots=True)
class Group:
    """A waiting group; its payload is in the store under ``id``."""

    id: int
    size: int
    rows: int
    env_id: int | None = None
    policy_version: int | None = None
    passed: int = 0


@dataclass(slots=True)
class Batch:
    """Groups that were handed out together. ``state``: ``out``, ``delivered`` or ``undelivered``."""

    id: int
    groups: list[Group]
    size: int
    step: int
    consumer: str | None = None
    state: str = "out"
    at: float = 0.0
    """When, in seconds since the epoch."""


@dataclass
class Job:
    """One run of one trainer. ``snapshot`` is what has to be stored beside the groups."""

    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    uuid: int = field(default_factory=lambda: uuid.uuid4().int)
    registration: Registration | None = None
    started: bool = False
    step: int = 0
    trainer_version: int | None = None
    next_batch_id: int = 1
    environments: list[Environment] = field(default_factory=list)
    queue: list[Group] = field(default_factory=list)
    batches: dict[int, Batch] = field(default_factory=dict)
    latest: int | None = None
    stale: int = 0
    """Groups that were too old to be handed out."""
    lease: float = LEASE

    # The trainer.

    @classmethod
    def begin(cls, registration: Registration, lease: float = LEASE) -> Job:
        """A new run for a trainer."""
        return cls(registration=registration, step=registration.starting_step, lease=lease)

    def same_run(self, registration: Registration) -> bool:
        """Whether a registration goes on with this run: the same parameters, and steps still to make."""
        return self.registration == registration and not self.finished

    @property
    def finished(self) -> bool:
        """Whether all steps were handed out and none waits to be acknowledged."""
        steps = self.registration.num_steps if self.registration else 0
        waiting = any(batch.consumer is not None for batch in self.batches.values())
        return steps > 0 and self.step >= steps and not waiting

    @property
    def batch_size(self) -> int:
        """Members of a batch."""
        return self.registration.batch_size if self.registration else -1

    def next_batch(
        self, now: float, *, consumer: str | None = None, version: int | None = None
    ) -> tuple[Batch | None, list[Group]]:
        """The next batch, out of the queue, and the groups that turned out too old.

        A consumer that acknowledges gets its unacknowledged batch again. One that does not has, by
        asking again, finished what it had.
        """
        self.started = True
        if version is not None:
            self.trainer_version = max(version, self.trainer_version or 0)
        if consumer is not None:
            waiting = [b for b in self.batches.values() if b.consumer == consumer]
            if waiting:
                return min(waiting, key=lambda b: b.id), []
        stale = self._drop_stale()
        minimum = self.minimum(now)
        chosen = choose(self.queue, self.batch_size, minimum)
        if chosen is None:
            return None, stale
        groups = [self.queue[i] for i in chosen]
        if chosen[0] != 0:
            self.queue[0].passed += 1
        taken = set(chosen)
        self.queue = [group for i, group in enumerate(self.queue) if i not in taken]
        size = sum(group.size for group in groups)
        batch = Batch(self.next_batch_id, groups, size, self.step, consumer)
        self.next_batch_id += 1
        self.step += 1
        self.batches[batch.id] = batch
        return batch, stale

    def finished_batches(self) -> list[Batch]:
        """Delivered batches that a trainer without acknowledgements is done with when it asks again."""
        return [b for b in self.batches.values() if b.consumer is None and b.state == "delivered"]

    def undo(self, batch: Batch) -> None:
        """Take a hand-out back that could not be stored."""
        self.requeue(batch)
        self.step -= 1

    def requeue(self, batch: Batch) -> None:
        """Let the groups of a batch wait for another hand-out; its step stays counted."""
        del self.batches[batch.id]
        self.queue = sorted([*batch.groups, *self.queue], key=lambda group: group.id)

    def finish(self, batch: Batch) -> None:
        """The trainer is done with a batch."""
        self.batches.pop(batch.id, None)

    def batch(self, batch_id: int) -> Batch:
        """A batch that was handed out and is not finished. Raises ``Refused`` (404)."""
        if batch_id not in self.batches:
            raise Refused("batch_id", f"no batch {batch_id} is out", status=404)
        return self.batches[batch_id]

    def _drop_stale(self) -> list[Group]:
        limit = self.registration.max_staleness if self.registration else None
        if limit is None:
            return []
        current = self.trainer_version if self.trainer_version is not None else self.step
        stale = [g for g in self.queue if g.policy_version is not None and current - g.policy_version > limit]
        if stale:
            dropped = {group.id for group in stale}
            self.queue = [group for group in self.queue if group.id not in dropped]
            self.stale += len(stale)
        return stale

    # Environments.

    def register_environment(self, request: RegisterEnv, now: float) -> Environment:
        """Take an environment in, or take it back where its instance is known."""
        if request.group_size > self.batch_size:
            raise Refused(
                "group_size",
                f"a group of {request.group_size} can never be part of a batch of {self.batch_size}",
            )
        for known in self.environments:
            if request.instance is not None and known.instance == request.instance:
                known.connected, known.seen = True, now
                known.max_token_length, known.weight = request.max_token_length, request.weight
                known.group_size, known.minimum = request.group_size, request.min_batch_allocation
                return known
        alike = sum(known.desired_name == request.desired_name for known in self.environments)
        environment = Environment(
            env_id=len(self.environments),
            desired_name=request.desired_name,
            name=f"{request.desired_name}_{alike}",
            max_token_length=request.max_token_length,
            weight=request.weight,
            group_size=request.group_size,
            minimum=request.min_batch_allocation,
            instance=request.instance,
            seen=now,
        )
        self.environments.append(environment)
        return environment

    def warning_for(self, environment: Environment, now: float) -> str | None:
        """What a new environment should know: that batches cannot have their exact size."""
        sizes = {e.group_size for e in self.environments if e.alive(now, self.lease)}
        largest = largest_sum(sizes, self.batch_size)
        if largest == self.batch_size:
            return None
        listed = ", ".join(map(str, sorted(sizes)))
        return (
            f"groups of {listed} cannot make a batch of exactly {self.batch_size}: batches will have "
            f"{largest} sequences"
        )

    def environment(self, env_id: int) -> Environment:
        """A registered environment. Raises ``Refused`` (404)."""
        if not 0 <= env_id < len(self.environments):
            raise Refused("env_id", f"no environment {env_id} is registered", status=404)
        return self.environments[env_id]

    def heard_of(self, env_id: int, now: float) -> Environment:
        """An environment has called: it is there."""
        environment = self.environment(env_id)
        environment.connected, environment.seen = True, now
        return environment

    def minimum(self, now: float) -> dict[int, int]:
        """Members of a batch that each living environment with a minimum must have."""
        shares = {e.env_id: e.minimum for e in self.environments if e.minimum and e.alive(now, self.lease)}
        total = max(1.0, sum(shares.values()))
        counts = {env_id: int(self.batch_size * share / total + 1e-9) for env_id, share in shares.items()}
        return {env_id: count for env_id, count in counts.items() if count > 0}

    def status_of(self, env_id: int, now: float) -> dict[str, Any]:
        """The reply to ``/status-env``: how much waits, in groups of this environment's size."""
        environment = self.heard_of(env_id, now)
        living = [e for e in self.environments if e.alive(now, self.lease)]
        total = sum(e.max_token_length * max(0.0, e.weight) for e in living)
        weight = environment.max_token_length * environment.weight / total if total > 0 else 0.0
        sizes: dict[int | None, int] = {}
        for group in self.queue:
            sizes[group.env_id] = sizes.get(group.env_id, 0) + group.size
            if group.env_id == env_id:
                environment.group_size = max(environment.group_size, group.size)
        own = sizes.pop(env_id, 0)
        minimum = self.minimum(now)
        others = sum(max(0, size - minimum.get(e, 0) if e is not None else size) for e, size in sizes.items())
        return {
            "current_step": self.step,
            "queue_size": (own + others) // environment.group_size,
            "unallocated_fraction": 1.0 - min(1.0, sum(e.minimum or 0.0 for e in living)),
            "self_queue_size": own // environment.group_size,
            "max_group_size": max((group.size for group in self.queue), default=1),
            "env_weight": max(MIN_ENV_WEIGHT, weight),
            "queued_sequences": own + sum(sizes.values()),
            "self_queued_sequences": own,
            "outstanding_sequences": self.outstanding,
            "trainer_version": self.trainer_version,
            "run_id": self.run_id,
        }

    @property
    def outstanding(self) -> int:
        """Members that were handed out and not yet finished with."""
        return sum(batch.size for batch in self.batches.values() if batch.state != "undelivered")

    # Groups.

    def check(self, env_id: int | None, size: int) -> None:
        """Whether a group may be taken. Raises ``Refused``."""
        if self.registration is None:
            raise Refused("body", "no trainer has registered yet; POST /register comes first", status=409)
        if env_id is not None:
            self.environment(env_id)
        if size > self.batch_size:
            raise Refused(
                "tokens",
                f"{size} sequences can never be part of a batch of {self.batch_size}; nothing was kept",
            )

    def add(self, group: Group) -> None:
        """A group that is safely stored waits at the end of the queue."""
        self.queue.append(group)
        self.latest = group.id

    # Storage.

    def snapshot(self) -> dict[str, Any]:
        """Everything but queue and batches, as plain JSON data."""
        return {
            "uuid": str(self.uuid),
            "registration": self.registration.model_dump() if self.registration else None,
            "started": self.started,
            "step": self.step,
            "trainer_version": self.trainer_version,
            "next_batch_id": self.next_batch_id,
            "stale": self.stale,
            "environments": [asdict(environment) for environment in self.environments],
        }

    @classmethod
    def restore(cls, run_id: str, data: dict[str, Any], now: float, lease: float = LEASE) -> Job:
        """The job of a snapshot. Leases begin anew: the server was away, not the environments."""
        registration = data["registration"]
        environments = [Environment(**{**entry, "seen": now}) for entry in data["environments"]]
        return cls(
            run_id=run_id,
            uuid=int(data["uuid"]),
            registration=Registration.model_validate(registration) if registration else None,
            started=data["started"],
            step=data["step"],
            trainer_version=data["trainer_version"],
            next_batch_id=data["next_batch_id"],
            stale=data["stale"],
            environments=environments,
            lease=lease,
        )
