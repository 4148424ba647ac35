"""Rewards: their forms, and what becomes of graders that fail, hang or leave."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from file_environment import FileEnv, environment, process

from environments.agent_loop import AgentResult
from environments.errors import VerifierError
from environments.records import Ending, Item, Reward
from environments.tool_context import ToolContext


def test_every_form_of_reward(tmp_path: Path) -> None:
    async def awaited(ctx: ToolContext, result: AgentResult) -> float:
        return float((await ctx.aio.terminal("true"))["exit_code"] == 0)

    forms: list[Any] = [
        lambda ctx, result: 1,
        lambda ctx, result: (1.0, {"speed": 2}),
        lambda ctx, result: Reward(1.0, {"speed": 2.0}, "well done"),
        awaited,
    ]
    report = process(tmp_path, *({"reward": form} for form in forms))
    assert [attempt.reward for attempt in report.attempts] == [1.0] * 4
    by_item = {attempt.item_id: attempt for attempt in report.attempts}
    assert by_item["i2"].verdict is not None
    assert by_item["i2"].verdict.explanation == "well done"
    assert by_item["i1"].verdict is not None
    assert by_item["i1"].verdict.metrics == {"speed": 2.0}


def test_plain_compute_reward_runs_in_a_thread(tmp_path: Path) -> None:
    class PlainEnv(FileEnv):
        def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Any:  # type: ignore[override]
            return float(ctx.terminal("echo plain")["output"].strip() == "plain")

    report = asyncio.run(environment(tmp_path, {}, base=PlainEnv).process_manager())
    assert report.attempts[0].reward == 1.0


def test_a_failing_verifier_runs_again_over_the_same_state_and_never_the_agent(tmp_path: Path) -> None:
    calls_seen: list[str] = []

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        calls_seen.append(ctx.terminal("cat ~/count; echo x >> ~/count")["output"])
        if len(calls_seen) < 3:
            raise VerifierError("the grader hiccupped")
        return 1.0

    report = process(tmp_path, {"commands": ["echo a > ~/count"], "reward": reward})
    assert [seen.strip().splitlines() for seen in calls_seen] == [["a"], ["a", "x"], ["a", "x", "x"]]
    (attempt,) = report.attempts
    assert attempt.reward == 1.0
    assert [failure.outcome for failure in attempt.failures] == ["verifier_error"] * 2


def test_a_reward_that_takes_too_long_is_a_failing_verifier(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        ctx.terminal("sleep 60")
        return 1.0

    started = time.monotonic()
    report = process(tmp_path, {"reward": reward}, reward_timeout=0.5, verifier_error_retries=1)
    assert report.attempts[0].outcome == "verifier_error"
    assert time.monotonic() - started < 30


def test_the_agents_time_limit_stops_its_command_and_grading_follows(tmp_path: Path) -> None:
    commands = ["echo started > ~/log; sleep 60; echo late >> ~/log"]

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        assert result.ending is Ending.TIME_LIMIT
        return float(ctx.terminal("cat ~/log; pgrep -x sleep")["output"].split() == ["started"])

    report = process(tmp_path, {"commands": commands, "reward": reward}, rollout_timeout=1.5)
    assert report.attempts[0].reward == 1.0


def test_a_long_grading_keeps_the_rollout_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.rollout._KEEP_AFTER", 0.2)

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        ctx.terminal("sleep 1")
        lines = (tmp_path / "out.run" / "attempts.jsonl").read_text().splitlines()
        return float(json.loads(lines[-1])["outcome"] is None)

    assert process(tmp_path, {"reward": reward}).attempts[0].reward == 1.0
    lines = (tmp_path / "out.run" / "attempts.jsonl").read_text().splitlines()
    assert [json.loads(line)["outcome"] for line in lines] == [None, "scored"]


@pytest.mark.parametrize("leave", [lambda: sys.exit(0), lambda: sys.exit(3)], ids=["exit 0", "exit 3"])
def test_user_code_that_exits_is_an_error_and_not_the_end(tmp_path: Path, leave: Any) -> None:
    report = process(tmp_path, {"reward": lambda ctx, result: leave()})
    assert report.exit_code == 1
    assert "sys.exit" in report.attempts[0].failures[-1].message


def test_user_code_that_raises_cancelled_is_an_error(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        raise asyncio.CancelledError

    report = process(tmp_path, {"reward": reward})
    assert report.attempts[0].outcome == "environment_error"
