"""From a finished rollout to a verdict: calls ``compute_reward`` and makes its answer honest.

A failing verifier runs again over the same final state, never the agent, or breaking the verifier
would buy another draw. An exception of the user's code is the environment's error and not the
model's zero.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from environments.agent_loop import AgentResult, ToolError
from environments.errors import ModelError, UserCodeError, VerifierError
from environments.real_numbers import LARGEST_NUMBER, is_finite_number
from environments.records import Attempt, Ending, Failure, Outcome, Reward, Trust, Verdict
from environments.waiting import DeadlineReached, deadline, waiting

if TYPE_CHECKING:
    from environments.rollout import Rollout


async def score_rollout(rollout: Rollout, result: AgentResult) -> Verdict:
    """Ask the environment for the reward, again where its verifier failed.

    Raises ``VerifierError`` when no try gave a verdict, ``UserCodeError`` for a reward that is none,
    and whatever the user's code raises.
    """
    config = rollout.environment.config
    for verification in range(config.verifier_error_retries + 1):
        started = time.time()
        try:
            verdict = verdict_from(await _ask(rollout, result), rollout.environment.name or "")
        except VerifierError as error:
            failures = rollout.record.failures
            failures.append(
                Failure(
                    try_number=rollout.record.try_number,
                    outcome=Outcome.VERIFIER_ERROR,
                    type=type(error).__name__,
                    message=f"verification {verification + 1}: {error}",
                    at=time.time(),
                )
            )
            if verification == config.verifier_error_retries:
                raise
            with waiting():
                await asyncio.sleep(min(config.retry_backoff * 2**verification, 30.0))
        else:
            verdict.started_at, verdict.duration = started, time.time() - started
            return verdict
    raise AssertionError("unreachable: the last verification returns or raises")


async def _ask(rollout: Rollout, result: AgentResult) -> Any:
    from environments.plain_calls import run_user_code

    environment = rollout.environment
    try:
        async with deadline(environment.config.reward_timeout):
            return await run_user_code(environment.compute_reward, rollout.item, result, rollout.ctx)
    except DeadlineReached as error:
        await rollout.ctx.aio.interrupt()
        raise VerifierError(
            f"compute_reward took longer than {environment.config.reward_timeout:g} s"
        ) from error
    except ModelError as error:
        # A judge model that fails is a failing verifier, not a failing policy.
        raise VerifierError(f"a model call of compute_reward failed: {error}") from error


def verdict_from(answer: Any, verifier: str) -> Verdict:
    """The verdict that a return value of ``compute_reward`` means.

    Accepts a number, ``(number, metrics)``, ``Reward`` and a whole ``Verdict``; raises ``UserCodeError``
    for anything else and for NaN and infinity.
    """
    if isinstance(answer, Verdict) and is_finite_number(answer.reward):
        return answer
    reward = _as_reward(answer)
    for name, value in [("reward", reward.value), *reward.metrics.items()]:
        if not is_finite_number(value):
            raise UserCodeError(
                f"compute_reward gave {name} = {value!r}; it must be a finite number, "
                f"{LARGEST_NUMBER:g} at most"
            )
    return Verdict(
        reward=float(reward.value),
        metrics={name: float(value) for name, value in reward.metrics.items()},
        explanation=reward.explanation,
        passed=reward.value >= 1.0,
        verifier=verifier,
        trust=Trust.NONE,
    )


def _as_reward(answer: Any) -> Reward:
    if isinstance(answer, Reward):
        return answer
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
        return Reward(_number(answer[0]), {str(k): _number(v) for k, v in answer[1].items()})
    return Reward(_number(answer))


def _number(value: Any) -> float:
    if isinstance(value, bool | int | float):
        return float(value)
    item = getattr(value, "item", None)  # numpy and torch scalars
    if callable(item):
        scalar = item()
        if isinstance(scalar, bool | int | float):
            return float(scalar)
    raise UserCodeError(
        f"compute_reward returned {value!r} ({type(value).__name__}); it must return a number, "
        "(number, metrics) or Reward(value, metrics, explanation)"
    )


def broken_sandbox_verdict(explanation: str, *, contested: bool = False) -> Verdict:
    """Score 0 for an agent that destroyed its own machine; never a new draw. ``contested`` where it may
    have been another's doing."""
    return Verdict(
        reward=0.0,
        explanation=explanation,
        passed=False,
        verifier="framework",
        contested=contested,
        started_at=time.time(),
    )


def result_of(record: Attempt) -> AgentResult:
    """The agent's result, read back from a finished attempt."""
    ending = record.ending or Ending.STOPPED
    return AgentResult(
        messages=record.messages,
        turns_used=len(record.turns),
        finished_naturally=ending is Ending.STOPPED,
        reasoning_per_turn=[
            m.get("reasoning_content") for m in record.messages if m.get("role") == "assistant"
        ],
        tool_errors=[ToolError(tool_result="", **error) for error in record.tool_errors],
        ending=ending,
        turns=record.turns,
        usage=record.usage,
    )
