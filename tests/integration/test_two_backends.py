"""Two environments with different backends and toolsets in one process: neither sees the other."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from environments.agent_loop import AgentResult
from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.records import Item, Message
from environments.tool_context import ToolContext


class WhoEnv(HermesAgentBaseEnv):
    """The agent leaves a mark; the reward is 1 where it finds its own mark and no other."""

    name = "who"

    async def setup(self) -> None:
        self.drawn = 0

    async def get_next_item(self) -> Item | None:
        self.drawn += 1
        return {"id": f"{self.config.terminal_backend}-{self.drawn}"}

    def format_prompt(self, item: Item) -> str:
        return "leave your mark"

    def oracle(self, item: Item) -> list[Message]:
        arguments = {"command": f"echo {item['id']} >> /tmp/mark; sleep 0.2"}
        call = {"type": "function", "function": {"name": "terminal", "arguments": arguments}}
        return [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "assistant", "content": "k"},
        ]

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> float:
        return float(ctx.terminal("cat /tmp/mark")["output"].split() == [item["id"]])

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return None


def environment(path: Path, **settings: Any) -> WhoEnv:
    config = HermesAgentEnvConfig(
        group_size=2,
        total_steps=4,
        use_wandb=False,
        progress="none",
        ensure_scores_are_not_same=False,
        data_path_to_save_groups=str(path),
        **settings,
    )
    return WhoEnv(config, [APIServerConfig(server_type="oracle")])


@pytest.mark.integration
def test_local_and_docker_interleaved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = os.environ.get("HERMES_TEST_DOCKER_HOST")
    if not host:
        pytest.skip("HERMES_TEST_DOCKER_HOST names no docker engine to test on")
    monkeypatch.setenv("DOCKER_HOST", host)

    async def both() -> list[Any]:
        local = environment(tmp_path / "local.jsonl", enabled_toolsets=["terminal", "file"])
        docker = environment(
            tmp_path / "docker.jsonl",
            enabled_toolsets=["terminal"],
            terminal_backend="docker",
            docker_image=os.environ.get("HERMES_TEST_DOCKER_IMAGE", "sandbox/debian"),
        )
        return list(await asyncio.gather(local.process_manager(), docker.process_manager()))

    local, docker = asyncio.run(both())
    assert [attempt.reward for attempt in local.attempts + docker.attempts] == [1.0] * 16
    assert {attempt.sandbox.backend for attempt in local.attempts} == {"local"}
    assert {attempt.sandbox.backend for attempt in docker.attempts} == {"docker"}
    assert all("write_file" in attempt.tool_names for attempt in local.attempts)
    assert all("write_file" not in attempt.tool_names for attempt in docker.attempts)
