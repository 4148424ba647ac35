"""Several steps as one attempt."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks.making import make_task

from environments.agent_loop import AgentResult
from environments.harbor_task_env.steps import SteppedResult, combined, falls_short
from environments.records import Ending, Trust, Turn, Usage, Verdict
from environments.tasks.directory import load_task
from environments.tasks.model import Task


def two_steps(directory: Path, strategy: str = "mean") -> Task:
    settings = f'multi_step_reward_strategy = "{strategy}"\n[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
    return load_task(make_task(directory / "task", settings))


def verdict(reward: float, trust: Trust = Trust.WEAK, **metrics: float) -> Verdict:
    return Verdict(reward, metrics, trust=trust, evidence={"reward_key": "reward"})


def test_the_mean_is_over_the_steps_that_were_graded(tmp_path: Path) -> None:
    task = two_steps(tmp_path)
    both = combined(task, [verdict(1.0, speed=0.5), verdict(0.0, Trust.SEPARATE)])
    assert (both.reward, both.passed, both.trust) == (0.5, False, Trust.WEAK)
    assert both.metrics == {"speed": 0.25, "step/a": 1.0, "step/b": 0.0}
    assert combined(task, [verdict(1.0), verdict(1.0)]).passed
    stopped = combined(task, [verdict(1.0)])
    assert (stopped.reward, stopped.passed) == (1.0, False)


def test_the_final_step_decides_where_the_task_says_so(tmp_path: Path) -> None:
    task = two_steps(tmp_path, "final")
    assert combined(task, [verdict(0.0), verdict(1.0, size=3)]).reward == 1.0
    assert combined(task, [verdict(1.0)]).reward == 0.0


@pytest.mark.parametrize(
    ("least", "short"),
    [
        (None, False),
        (0.5, False),
        (0.9, True),
        ({"reward": 0.5}, False),
        ({"speed": 1.0}, True),
        ({"x": 0}, True),
    ],
)
def test_thresholds(least: object, short: bool) -> None:
    assert falls_short(verdict(0.75, speed=0.5), least) is short  # type: ignore[arg-type]


def test_conversations_stand_one_after_the_other() -> None:
    results = [
        AgentResult(
            [{"role": "user", "content": str(n)}], 1, True, ["x"], turns=[Turn()], usage=Usage(5, 0, n)
        )
        for n in (1, 2)
    ]
    results[1].ending, results[1].finished_naturally = Ending.MAX_TURNS, False
    merged = SteppedResult.of(results, [verdict(1.0)])
    assert [m["content"] for m in merged.messages] == ["1", "2"]
    assert (merged.turns_used, merged.usage.completion_tokens, merged.begun) == (2, 3, 2)
    assert (merged.ending, merged.finished_naturally) == (Ending.MAX_TURNS, False)
