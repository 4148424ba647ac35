"""Two thousand reward functions with plain calls, one of them stuck, on real sandboxes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from environments.agent_loop import AgentResult
from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.records import Item
from environments.tool_context import ToolContext

REWARDS = 2000
STUCK = 1000


class ManyRewards(HermesAgentBaseEnv):
    """Every reward takes the semaphore that ``setup`` made, and makes plain calls under it."""

    name = "many-rewards"

    async def setup(self) -> None:
        self.gate = asyncio.Semaphore(32)
        self.finished_at: dict[int, float] = {}
        self.stuck_from = 0.0

    async def get_next_item(self) -> Item | None:
        return None

    def format_prompt(self, item: Item) -> str:
        return "nothing to do"

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        number = item["number"]
        async with self.gate:
            if number == STUCK:
                self.stuck_from = time.monotonic()
                slept = ctx.terminal("sleep 20")
                assert slept["exit_code"] == 0
            else:
                assert ctx.terminal("echo hi")["output"].strip() == "hi"
                ctx.write_file("~/a", f"{number}")
                assert ctx.read_file("~/a")["content"] == f"{number}"
        self.finished_at[number] = time.monotonic()
        return 1.0

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.evaluate_items([{"id": f"r{n}", "number": n} for n in range(REWARDS)])


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_one_stuck_reward_holds_up_no_other(tmp_path: Path) -> None:
    config = HermesAgentEnvConfig(
        enabled_toolsets=["terminal"],
        max_eval_workers=64,
        use_wandb=False,
        progress="none",
        data_dir_to_save_evals=str(tmp_path),
    )
    environment = ManyRewards(config, [APIServerConfig(server_type="nop")])
    started = time.monotonic()
    report = asyncio.run(environment.evaluate_manager())
    elapsed = time.monotonic() - started
    assert report.exit_code == 0
    assert report.metrics["eval/pass_rate"] == 1.0
    stuck = environment.stuck_from
    while_stuck = sum(stuck < at < stuck + 20 for n, at in environment.finished_at.items() if n != STUCK)
    print(f"{REWARDS} rewards in {elapsed:.0f} s; {while_stuck} of them finished while one slept 20 s")
    assert while_stuck > 20
