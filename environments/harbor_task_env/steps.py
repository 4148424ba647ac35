"""Several steps as one attempt: their conversations, and the rewards they add up to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from environments.agent_loop import AgentResult
from environments.errors import EvidenceMissing
from environments.records import Attempt, Verdict
from environments.tasks.model import Task


@dataclass
class SteppedResult(AgentResult):
    """What the steps of one attempt left behind. ``verdicts`` are those of the steps graded so far."""

    verdicts: list[Verdict] = field(default_factory=list)
    begun: int = 0
    """Steps that the agent has worked on."""

    @classmethod
    def of(cls, results: Sequence[AgentResult], verdicts: Sequence[Verdict]) -> SteppedResult:
        """The steps' results one after the other; how it ended is how the last one ended."""
        last = results[-1]
        merged = cls(
            messages=[message for result in results for message in result.messages],
            turns_used=sum(result.turns_used for result in results),
            finished_naturally=last.finished_naturally,
            reasoning_per_turn=[text for result in results for text in result.reasoning_per_turn],
            tool_errors=[error for result in results for error in result.tool_errors],
            managed_state=last.managed_state,
            ending=last.ending,
            turns=[turn for result in results for turn in result.turns],
            model_served=last.model_served,
            verdicts=list(verdicts),
            begun=len(results),
        )
        for result in results:
            merged.usage.add(result.usage)
        return merged


def check_evidence(task: Task, earlier: Attempt) -> None:
    """Raise ``EvidenceMissing`` where a sandbox that was kept no longer is what the agent left."""
    if len(task.steps) > 1:
        raise EvidenceMissing("it has several steps, and what each of them left was not kept")
    kept = earlier.verdicts[0].kept if earlier.verdicts else []
    if kept and task.steps[0].verifier.mode == "shared":
        raise EvidenceMissing(
            f"its tests need what the agent left running ({', '.join(kept[:5])}), and that was ended with "
            "the first grading"
        )


def falls_short(verdict: Verdict, least: float | Mapping[str, float] | None) -> bool:
    """Whether a step's rewards are too low for the next step to begin."""
    if least is None:
        return False
    if isinstance(least, Mapping):
        rewards = scores_of(verdict)
        return any(rewards.get(key, -math.inf) < number for key, number in least.items())
    return verdict.reward is None or verdict.reward < least


def scores_of(verdict: Verdict) -> dict[str, float]:
    """Every reward of a verdict by its key."""
    key = str(verdict.evidence.get("reward_key", "reward"))
    found = dict(verdict.metrics)
    if verdict.reward is not None and key != "mean":
        found[key] = verdict.reward
    return found


def combined(task: Task, verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a task of several steps, by its strategy.

    ``mean`` is the mean over the steps that were graded; ``final`` is the last step's, and 0 where the
    attempt did not come so far.
    """
    last = verdicts[-1]
    reached = len(verdicts) == len(task.steps)
    rewards = [verdict.reward or 0.0 for verdict in verdicts]
    if task.reward_strategy == "final":
        reward, metrics = (rewards[-1], dict(last.metrics)) if reached else (0.0, {})
    else:
        reward, metrics = math.fsum(rewards) / len(rewards), _means(verdicts)
    metrics |= {f"step/{s.name}": value for s, value in zip(task.steps, rewards, strict=False)}
    return Verdict(
        reward=reward,
        metrics=metrics,
        explanation=f"{task.reward_strategy} of {len(verdicts)} of {len(task.steps)} steps",
        passed=reached and reward >= 1.0,
        verifier=last.verifier,
        verifier_version=last.verifier_version,
        evidence={
            "steps": {s.name: v.evidence for s, v in zip(task.steps, verdicts, strict=False)},
            "reward_key": task.reward_strategy,
        },
        trust=max((v.trust for v in verdicts), key=_WEAKNESS.index),
        tampered=any(v.tampered for v in verdicts),
        contested=any(v.contested for v in verdicts),
        killed=[name for v in verdicts for name in v.killed],
        kept=list(last.kept),
        overridden=[name for v in verdicts for name in v.overridden],
        bundle_version=last.bundle_version,
    )


_WEAKNESS = ("separate", "room", "weak", "none")
"""Kinds of trust, the weakest last: a chain is as strong as its weakest link."""


def _means(verdicts: Sequence[Verdict]) -> dict[str, float]:
    names = dict.fromkeys(name for verdict in verdicts for name in verdict.metrics)
    return {name: math.fsum(v.metrics.get(name, 0.0) for v in verdicts) / len(verdicts) for name in names}
