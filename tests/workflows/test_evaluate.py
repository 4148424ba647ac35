"""`evaluate` on an environment of the Atropos layer: repeats, resume, rates, exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from environments.config import APIServerConfig
from environments.errors import (
    RunAborted,
    SandboxError,
)
from workflows.number_environment import Behaviour, NumberEnv, environment, lines


def test_evaluate_counts_repeats_and_resumes(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    env = environment(path, attempts=3)
    report = asyncio.run(env.evaluate_manager())
    assert report.exit_code == 0
    assert report.metrics["eval/total_attempts"] == 12
    assert report.metrics["eval/pass_rate"] == 0.5
    again = environment(path, attempts=4)
    report = asyncio.run(again.evaluate_manager())
    assert report.metrics["eval/total_attempts"] == 16
    assert sum(again.calls.values()) == 4
    saved = json.loads((path.with_suffix(".evals") / "metrics.json").read_text())
    assert saved["results"]["all"]["eval/pass_rate"] == 0.5
    assert len(lines(path.with_suffix(".evals") / "samples.jsonl")) == 16


def test_evaluate_with_a_failure_is_incomplete(tmp_path: Path) -> None:
    behaviour: Behaviour = lambda n, call: SandboxError("gone") if n == 2 else 1.0  # noqa: E731
    report = asyncio.run(environment(tmp_path / "out.jsonl", behaviour).evaluate_manager())
    assert report.exit_code == 1
    assert report.metrics["eval/coverage"] == 0.75
    assert report.metrics["eval/pass_rate"] == 0.75


def test_an_evaluate_that_does_nothing_says_so(tmp_path: Path) -> None:
    env = environment(tmp_path / "out.jsonl")

    async def nothing(self: Any) -> None:
        pass

    type(env).evaluate = nothing  # type: ignore[method-assign,assignment]
    with pytest.raises(RunAborted, match="did nothing"):
        asyncio.run(env.evaluate_manager())


def test_rates_of_an_evaluation_that_ended_early_have_one_denominator(tmp_path: Path) -> None:
    """What was not begun is not passed, in the rate of its category as in that of the whole."""

    class Sorted(NumberEnv):
        behaviour = staticmethod(lambda n, call: RunAborted("enough") if n == 2 else 1.0)

        async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            items = [{"id": f"e{n}", "number": n, "category": "ab"[n % 2]} for n in range(6)]
            return await self.evaluate_items(items)

    path = tmp_path / "out.jsonl"
    config = environment(path, max_eval_workers=1).config
    with pytest.raises(RunAborted, match="enough"):
        asyncio.run(Sorted(config, [APIServerConfig(server_type="nop")]).evaluate_manager())
    saved = json.loads((path.with_suffix(".evals") / "metrics.json").read_text())
    found = saved["results"]["all"]
    assert (found["eval/total_tasks"], found["eval/passed_tasks"]) == (6, 2)
    assert found["eval/pass_rate"] == found["eval/pass_rate_a"] == found["eval/pass_rate_b"] == 1 / 3


def test_items_may_be_evaluated_in_parts(tmp_path: Path) -> None:
    """The results are of all parts, and a resume runs none again."""

    class Parts(NumberEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            for part in (range(2), range(2, 5)):
                await self.evaluate_items([{"id": f"e{n}", "number": n} for n in part])

    path = tmp_path / "out.jsonl"
    config = environment(path).config
    for _ in range(2):
        report = asyncio.run(Parts(config, [APIServerConfig(server_type="nop")]).evaluate_manager())
        assert report.exit_code == 0 and "left out" not in report.message
        saved = json.loads((path.with_suffix(".evals") / "metrics.json").read_text())
        assert saved["results"]["all"]["eval/total_tasks"] == 5
        assert len(lines(path.with_suffix(".evals") / "samples.jsonl")) == 5
    assert "5 of them from an earlier run" in report.message
