"""The line to the trajectory API: joining the training, watching it, and how much it still takes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from environments.config import BaseEnvConfig
from environments.errors import ConfigError, RunAborted
from environments.trajectory_api.client import Rejected, Reply, TrajectoryClient, Unreachable

logger = logging.getLogger(__name__)

POLL = 0.5
"""Seconds between two looks at the training."""

REMIND = 60.0
"""Seconds after which a reason for waiting is told again."""


@dataclass(slots=True)
class Training:
    """The training as it was found at joining."""

    run: str
    """Names the training run."""
    ours: bool
    """Whether our server answers, not the original."""
    env_id: int
    wandb_name: str
    group: str | None
    project: str | None
    batch_size: int
    max_token_length: int
    starting_step: int
    num_steps: int
    checkpoint_interval: int
    checkpoint_directory: str
    rollout_ids: bool


@dataclass(slots=True)
class Demand:
    """How far the training is and what waits for it, in sequences."""

    step: int = 0
    queued: int = 0
    own_queued: int = 0
    outstanding: int = 0
    env_weight: float = 1.0
    jumped: int = 0
    """Steps between the last two looks that differed; the original hands out several at once."""


class Link:
    """Joins a training and keeps an eye on it. ``tell`` gets each reason for waiting, once in a while."""

    def __init__(
        self,
        client: TrajectoryClient,
        config: BaseEnvConfig,
        name: str,
        instance: str,
        tell: Callable[[str], None],
    ) -> None:
        self.client, self.config, self.name, self.instance = client, config, name, instance
        self.tell = tell
        self.training: Training | None = None
        self.demand = Demand()
        self.away = False
        """Whether the API does not answer at the moment."""
        self._told: tuple[str, float] = ("", 0.0)
        self._confirmed: list[tuple[float, int]] = []
        self._back = asyncio.Event()

    # Joining.

    async def join(self) -> Training:
        """Register with the API, however long the API and the trainer take to come."""
        wandb = await self._until(lambda: self.client.get("/wandb_info"), self._trainer_registered)
        info = await self._until(
            lambda: self.client.get("/info"), lambda reply: _numbers(reply, "batch_size", "max_token_len")
        )
        batch_size = self._batch_size(int(info.number("batch_size")))
        reply = await self._until(
            lambda: self.client.post("/register-env", self._request()), _trainer_started
        )
        answer = reply.value
        if answer.get("warning"):
            self.tell(f"the trajectory API says: {answer['warning']}")
        fingerprint = f"{wandb.value.get('project')}/{wandb.value.get('group')}/{batch_size}"
        self.training = Training(
            run=str(answer.get("run_id") or hashlib.sha256(fingerprint.encode()).hexdigest()[:16]),
            ours=reply.ours,
            env_id=int(reply.number("env_id")),
            wandb_name=str(answer.get("wandb_name") or self.name),
            group=wandb.value.get("group"),
            project=wandb.value.get("project"),
            batch_size=batch_size,
            max_token_length=int(info.number("max_token_len")),
            starting_step=int(reply.number("starting_step")),
            num_steps=int(reply.number("num_steps")),
            checkpoint_interval=int(reply.number("checkpoint_interval")),
            checkpoint_directory=str(answer.get("checkpoint_dir") or ""),
            rollout_ids=bool(answer.get("rollout_ids")),
        )
        self.demand = Demand(step=self.training.starting_step)
        self._confirmed = []
        kind = "" if reply.ours else " (the original: groups are sent at least once)"
        logger.info(
            "joined the training at %s%s as %s, step %d",
            self.client.url,
            kind,
            self.training.wandb_name,
            self.training.starting_step,
        )
        return self.training

    def _request(self) -> dict[str, Any]:
        return {
            "max_token_length": self.config.max_token_length,
            "desired_name": self.name,
            "weight": self.config.inference_weight,
            "group_size": self.config.group_size,
            "min_batch_allocation": self.config.min_batch_allocation,
            "instance": self.instance,
        }

    def _batch_size(self, told: int) -> int:
        batch_size = told if told > 0 else self.config.batch_size
        if batch_size <= 0:
            raise ConfigError("the trainer names no batch size; set --env.batch_size")
        if self.config.group_size > batch_size:
            raise ConfigError(
                f"--env.group_size {self.config.group_size} is more than the trainer's batch of {batch_size}"
            )
        return batch_size

    @staticmethod
    def _trainer_registered(reply: Reply) -> str | None:
        return None if reply.value.get("project") is not None else "waiting for a trainer to register"

    async def _until(
        self, ask: Callable[[], Any], problem: Callable[[Reply], str | None], pause: float = 1.0
    ) -> Reply:
        """Ask until the reply has no problem; tells what it waits for."""
        while True:
            try:
                reply: Reply = await ask()
                reason = problem(reply)
                if reason is None:
                    return reply
                reason = f"{reason} at {self.client.url}"
            except Unreachable as error:
                reason = f"waiting for the trajectory API: {error}"
            except Rejected as rejected:
                if not rejected.temporary:
                    raise refused(self.client.url, rejected) from rejected
                reason = f"waiting for the trajectory API at {self.client.url}: {rejected}"
            self._tell(reason)
            await asyncio.sleep(pause)

    def _tell(self, reason: str) -> None:
        now = time.monotonic()
        if reason != self._told[0] or now - self._told[1] >= REMIND:
            self._told = (reason, now)
            self.tell(reason)

    # Watching.

    async def look(self) -> bool:
        """Bring ``demand`` up to date. False where the API does not know us any more: join again."""
        training = self._joined()
        asked = time.monotonic()
        try:
            reply = await self.client.get("/status-env", {"env_id": training.env_id})
            demand = self._demand(reply)
        except Unreachable as error:
            self.away = True
            self._tell(f"{error}; rolling on, groups wait on disk")
            return True
        except Rejected as rejected:
            if rejected.status in (401, 403):
                raise refused(self.client.url, rejected) from rejected
            known = rejected.temporary and rejected.status != 500  # the original after a restart: 500
            if known:
                self._tell(f"{self.client.url}: {rejected}; rolling on, groups wait on disk")
            return known
        self._back.set()
        if self.away:
            self.away = False
            self.tell(f"the trajectory API at {self.client.url} answers again")
        self._told = ("", 0.0)
        if reply.ours and reply.value.get("run_id") not in (None, training.run):
            return False
        self.demand = demand
        self._confirmed = [(when, members) for when, members in self._confirmed if when > asked]
        return True

    def _demand(self, status: Reply) -> Demand:
        size = self.config.group_size
        step = int(status.number("current_step"))
        jumped = step - self.demand.step if step != self.demand.step else self.demand.jumped
        # The original does not tell: what its last hand-out formed may still lie with it.
        guess = max(0, jumped) * self._joined().batch_size
        return Demand(
            step=step,
            queued=int(status.number("queued_sequences", status.number("queue_size") * size)),
            own_queued=int(
                status.number("self_queued_sequences", status.number("self_queue_size", 0) * size)
            ),
            outstanding=int(status.number("outstanding_sequences", guess)),
            env_weight=float(status.number("env_weight", 1.0)),
            jumped=jumped,
        )

    async def pause(self, seconds: float) -> None:
        """Wait before another try; shorter where the API is heard of meanwhile."""
        if not self.away:
            await asyncio.sleep(seconds)
            return
        self._back.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._back.wait()

    def confirmed(self, members: int) -> None:
        """A group was confirmed; until the next look the status does not have it."""
        self._confirmed.append((time.monotonic(), members))

    def room(self, underway: int, last_step: int | None) -> int:
        """Sequences that may still be begun. ``underway`` are those in flight or not yet confirmed.

        Positive means that one more group may begin: the bound is kept to the group that reaches it.
        """
        training, demand = self._joined(), self.demand
        batch = training.batch_size
        bound = max(1, self.config.max_batches_offpolicy) * batch
        mine = underway + sum(members for _, members in self._confirmed)
        waiting = demand.queued + mine
        room = bound - waiting - demand.outstanding
        if not training.ours:
            room = max(room, batch - waiting)  # its outstanding batches are a guess: never starve it
        needed = math.inf if last_step is None else (last_step - demand.step) * batch - waiting
        share = self.config.min_batch_allocation
        if share:
            own = demand.own_queued + mine
            room = max(room, math.ceil(bound * share) - own)
            if last_step is not None:
                needed = max(needed, math.ceil(batch * share) * (last_step - demand.step) - own)
        return int(min(room, needed))

    async def leave(self) -> None:
        """Tell the API that this environment is gone; it does not matter where it does not answer."""
        if self.training is None:
            return
        try:
            async with asyncio.timeout(5):
                await self.client.post("/disconnect-env", {"env_id": self.training.env_id})
        except (Unreachable, Rejected, TimeoutError) as error:
            logger.info("could not say good-bye to the trajectory API: %s", error)

    def _joined(self) -> Training:
        if self.training is None:
            raise RunAborted("not registered with a trajectory API")
        return self.training


def refused(url: str, rejected: Rejected) -> ConfigError:
    """A refusal that every further call would meet."""
    if rejected.status in (401, 403):
        return ConfigError(f"{url} wants another token; set TRAJECTORY_API_TOKEN ({rejected})")
    return ConfigError(f"{url} refuses this environment: {rejected}")


def _numbers(reply: Reply, *names: str) -> None:
    """Whether a reply has what is read of it later. Raises ``Rejected``."""
    for name in names:
        reply.number(name)


def _trainer_started(reply: Reply) -> str | None:
    if reply.value.get("status") == "success":
        _numbers(reply, "env_id", "starting_step", "num_steps", "checkpoint_interval")
        return None
    return "waiting for the trainer to fetch its first batch"
