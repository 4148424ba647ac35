"""An environment whose items say what the agent does and how that is rewarded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from environments.agent_loop import AgentResult
from environments.config import APIServerConfig, HermesAgentEnvConfig
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.records import Item, Message
from environments.run import RunReport
from environments.tool_context import ToolContext


def calls(name: str, **arguments: Any) -> Message:
    """An assistant message with one tool call."""
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


class FileEnv(HermesAgentBaseEnv):
    """The oracle runs the item's commands; the reward is the item's function of the context."""

    name = "files"
    items: list[dict[str, Any]] = []

    async def setup(self) -> None:
        self.position = 0

    async def get_next_item(self) -> Item | None:
        self.position += 1
        return self.items[self.position - 1] if self.position <= len(self.items) else None

    def format_prompt(self, item: Item) -> str:
        return str(item["prompt"])

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Any:
        outcome = item["reward"](ctx, result)
        return await outcome if asyncio.iscoroutine(outcome) else outcome

    def oracle(self, item: Item) -> list[Message]:
        commands = item.get("commands", [])
        return [*(calls("terminal", command=c) for c in commands), {"role": "assistant", "content": "done"}]

    def item_info(self, item: Item) -> dict[str, Any]:
        return {"prompt": item["prompt"]}

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.evaluate_items(self.items)


def environment(
    path: Path,
    *items: dict[str, Any],
    base: type[FileEnv] = FileEnv,
    server: str = "oracle",
    **settings: Any,
) -> FileEnv:
    """An environment with these items and quiet settings."""
    cls = type("Env", (base,), {"items": [{"id": f"i{n}", "prompt": "go", **i} for n, i in enumerate(items)]})
    defaults: dict[str, Any] = {
        "group_size": 1,
        "enabled_toolsets": ["terminal", "file"],
        "use_wandb": False,
        "progress": "none",
        "include_messages": True,
        "ensure_scores_are_not_same": False,
        "retry_backoff": 0.0,
        "data_path_to_save_groups": str(path / "out.jsonl"),
        "data_dir_to_save_evals": str(path / "evals"),
    }
    config = HermesAgentEnvConfig(**{**defaults, **settings})
    env: FileEnv = cls(config, [APIServerConfig(server_type=server)])  # type: ignore[arg-type]
    return env


def process(path: Path, *items: dict[str, Any], **settings: Any) -> RunReport:
    return asyncio.run(environment(path, *items, **settings).process_manager())
