"""Groups of attempts at one item: their identity, and how a group is rolled out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from environments.attempt_scope import GroupScope, current_group, derive_seed
from environments.records import Attempt, Item, ScoredDataGroup, TrainingUse
from environments.results.fingerprint import content_hash
from environments.scheduler import gather_or_cancel, run_attempt

if TYPE_CHECKING:
    from environments.base_env import BaseEnv


def new_group(environment: BaseEnv, item: Item, draw: int | None, *, prefix: str = "train") -> GroupScope:
    """The scope of a group, with what an earlier run had finished of it.

    A training group is named by the number of its draw, an evaluation's by its item.
    """
    item_hash = content_hash(item)
    item_id = environment.item_id(item) or item_hash
    group_id = f"{prefix}/{item_id}" if draw is None else f"{draw}"
    group = GroupScope(
        group_id=group_id,
        item_id=item_id,
        item=item,
        seed=derive_seed(environment.config.seed, prefix, item_id if draw is None else draw),
        split="eval" if draw is None else "train",
        draw=draw,
    )
    group.slots["item_hash"] = item_hash
    if environment.active_run is not None:
        group.finished = environment.active_run.earlier(group_id, item_id, item_hash)
    return group


async def roll_out_group(environment: BaseEnv, item: Item) -> ScoredDataGroup:
    """``group_size`` attempts at one item side by side, as a group for the trainer.

    With ``failed_attempts: refill`` attempts that ended without a score are made up for, at most as
    many again as the group is large.
    """
    from environments.results.groups import group_from_attempts

    run, config = environment.active_run, environment.config
    assert run is not None, "groups are rolled out inside a workflow"
    group = current_group.get() or new_group(environment, item, 0)
    size = group.size or config.group_size
    most = size * (2 if config.failed_attempts == "refill" else 1)
    attempts: list[Attempt] = []
    while len(attempts) < most:
        missing = size - sum(attempt.valid for attempt in attempts)
        numbers = range(len(attempts), min(most, len(attempts) + missing))
        if not numbers:
            break
        attempts += await gather_or_cancel(
            run_attempt(environment, group, number, run.finished) for number in numbers
        )
    return group_from_attempts(
        group.draw or 0,
        attempts,
        include_messages=config.include_messages,
        config=config,
        over_limit=TrainingUse(config.over_limit_attempts),
        last_branch=config.branch_reward == "last",
    )


def group_metrics(group: GroupScope) -> dict[str, Any]:
    """What a tracker is told of a finished group."""
    attempts = list(group.attempts.values())
    scored = [attempt for attempt in attempts if attempt.valid]
    metrics: dict[str, Any] = {"train/attempts": len(attempts), "train/scored": len(scored)}
    if any(attempt.sequences for attempt in attempts):
        metrics["train/forks"] = sum(max(0, len(attempt.sequences) - 1) for attempt in attempts)
    if scored:
        metrics["train/mean_reward"] = sum(a.reward or 0.0 for a in scored) / len(scored)
        metrics["train/mean_turns"] = sum(len(a.turns) for a in scored) / len(scored)
        metrics["train/completion_tokens"] = sum(a.usage.completion_tokens for a in scored)
        metrics["train/tool_errors"] = sum(len(a.tool_errors) for a in scored)
    return metrics
