"""The one implicit carrier of a run: which attempt the code at hand belongs to.

A scope is made by the scheduler for every try and lives in a context variable, so that user code
which builds ``HermesAgentLoop(task_id=…)`` or ``ToolContext(task_id)`` itself finds its own sandbox
and record. Nothing of an attempt is ever kept on the environment.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from environments.records import Attempt, Item, ScoredDataItem
from environments.waiting import WaitingClock

if TYPE_CHECKING:
    from environments.rollout import Rollout


@dataclass(slots=True)
class GroupScope:
    """What the rollouts of one group share. ``slots`` holds what a layer above adds, such as tools."""

    group_id: str
    item_id: str
    item: Item
    seed: int
    split: Literal["train", "eval"] = "train"
    draw: int | None = None
    """Number of the draw of ``get_next_item`` that the group came from; None in evaluations."""
    size: int | None = None
    finished: dict[int, Attempt] = field(default_factory=dict)
    """Attempts of this group that an earlier, interrupted run had finished, by number."""
    attempts: dict[int, Attempt] = field(default_factory=dict)
    """Attempts of this group as they end."""
    slots: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class AttemptScope:
    """One try of one attempt while it runs."""

    group: GroupScope
    record: Attempt
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    waiting: WaitingClock = field(default_factory=WaitingClock)
    started: float = field(default_factory=time.monotonic)
    rollouts: dict[str, Rollout] = field(default_factory=dict)
    """Live rollouts by task id; the first one is the attempt's own."""
    scored_item: ScoredDataItem | None = None
    rescoring: bool = False
    """Whether a finished attempt is judged again: no model acts, and its sandbox is the one it left."""
    viewed: bool = False
    """Whether it is noted what the item puts before the agent."""
    open_rollout: Callable[[str], Rollout] | None = None
    """Makes a rollout for a task id that user code named first."""

    @property
    def seed(self) -> int:
        """Seed of this attempt; the same in every try."""
        return derive_seed(self.group.seed, self.record.attempt)


current_attempt: ContextVar[AttemptScope | None] = ContextVar("current_attempt", default=None)
current_group: ContextVar[GroupScope | None] = ContextVar("current_group", default=None)


def derive_seed(seed: int, *path: int | str) -> int:
    """A 31-bit seed that depends on all of its arguments and on nothing else."""
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
