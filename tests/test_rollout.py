"""Rollouts: a sandbox for each, released with its block, found by its name, given back when resumed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from file_environment import FileEnv, calls, environment, process

from environments.agent_loop import AgentResult, HermesAgentLoop
from environments.errors import SandboxReleased
from environments.records import Item, Message, ScoredDataItem
from environments.run import RunReport
from environments.tool_context import ToolContext


def test_rollouts_do_not_see_each_other(tmp_path: Path) -> None:
    def reward(ctx: ToolContext, result: AgentResult) -> float:
        return float(ctx.terminal("cat ~/mark /tmp/mark | wc -l")["output"].strip() == "2")

    items = [{"commands": ["echo x >> ~/mark; echo x >> /tmp/mark"], "reward": reward}] * 6
    report = process(tmp_path, *items, max_num_workers=6)
    assert [attempt.reward for attempt in report.attempts] == [1.0] * 6


def test_loops_and_contexts_that_user_code_builds_find_their_own_sandbox(tmp_path: Path) -> None:
    class ByHand(FileEnv):
        async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
            schemas, names = self._resolve_tools_for_group()
            loop = HermesAgentLoop(
                server=self.server,
                tool_schemas=schemas,
                valid_tool_names=names,
                max_turns=5,
                task_id=f"task-{item['id']}",
            )
            result = await loop.run([{"role": "user", "content": item["prompt"]}])
            ctx = ToolContext(f"task-{item['id']}")
            found = await ctx.aio.read_file("~/a")
            return {
                "tokens": [0],
                "masks": [-100],
                "scores": float(found["content"] == f"{item['id']}\n"),
                "messages": result.messages,
                "overrides": {"placeholder_tokens": True},
            }, []

        def oracle(self, item: Item) -> list[Message]:
            return [
                calls("terminal", command=f"echo {item['id']} > ~/a"),
                {"role": "assistant", "content": "k"},
            ]

    env = environment(tmp_path, *({} for _ in range(4)), base=ByHand, max_num_workers=4)
    report = asyncio.run(env.process_manager())
    assert [attempt.reward for attempt in report.attempts] == [1.0] * 4


def test_a_hand_written_evaluate_resumes_through_rollout(tmp_path: Path) -> None:
    class ByHand(FileEnv):
        async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            rewards = []
            for item in self.items:
                async with self.rollout(item) as r:
                    result = await r.run()
                    rewards.append((await r.score(result)).reward)
            return {"mean": sum(x or 0 for x in rewards) / len(rewards)}

    commands = [f"date +%N >> {tmp_path}/never; echo x > ~/a"]
    item = {"commands": commands, "reward": lambda ctx, result: float("error" not in ctx.read_file("~/a"))}
    first = asyncio.run(environment(tmp_path, item, item, base=ByHand).evaluate_manager())
    assert first.metrics == {"mean": 1.0}
    graded: list[int] = []
    broken = {"commands": ["false"], "reward": lambda ctx, result: graded.append(1) or 0.0}
    second = asyncio.run(environment(tmp_path, broken, broken, base=ByHand).evaluate_manager())
    # Functions are not part of an item's content here, so the second run finds both attempts finished.
    assert second.exit_code == 0


def test_a_rollout_is_released_with_its_block(tmp_path: Path) -> None:
    kept: list[Any] = []

    def reward(ctx: ToolContext, result: AgentResult) -> float:
        kept.append(ctx)
        return 1.0

    class Peek(FileEnv):
        async def cleanup(self) -> None:
            with pytest.raises(SandboxReleased):
                await kept[0].aio.terminal("true")
            kept.append("checked")

    asyncio.run(environment(tmp_path, {"reward": reward}, base=Peek).process_manager())
    assert kept[-1] == "checked"


def test_an_agent_that_breaks_its_sandbox_scores_zero_once(tmp_path: Path) -> None:
    commands = ["kill -9 -1", "kill -9 1; echo alive", "echo still > ~/a"]
    report = process(tmp_path, {"commands": commands, "reward": lambda ctx, result: 1.0})
    (attempt,) = report.attempts
    assert attempt.try_number == 0
    assert attempt.outcome == "scored"


def test_two_environments_in_one_process_do_not_see_each_other(tmp_path: Path) -> None:
    async def both() -> list[RunReport]:
        def reward(ctx: ToolContext, result: AgentResult) -> float:
            return float(
                ctx.terminal("cat ~/who")["output"].strip().split("\n") == [result.messages[0]["content"]]
            )

        def items(who: str) -> list[dict[str, Any]]:
            return [{"prompt": who, "commands": [f"echo {who} >> ~/who"], "reward": reward}] * 5

        one = environment(tmp_path / "1", *items("one"), max_num_workers=5)
        two = environment(
            tmp_path / "2",
            *items("two"),
            max_num_workers=5,
            local_isolation="landlock",
            enabled_toolsets=["terminal"],
        )
        return list(await asyncio.gather(one.process_manager(), two.process_manager()))

    one, two = asyncio.run(both())
    assert [attempt.reward for attempt in one.attempts + two.attempts] == [1.0] * 10
    assert {"read_file" in attempt.tool_names for attempt in one.attempts} == {True}
    assert {"read_file" in attempt.tool_names for attempt in two.attempts} == {False}
    assert {a.sandbox.isolation for a in one.attempts if a.sandbox} != {
        a.sandbox.isolation for a in two.attempts if a.sandbox
    }
