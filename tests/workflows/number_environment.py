"""An environment of the Atropos layer whose rollouts do what a test says."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.base_env import BaseEnv
from environments.config import APIServerConfig, BaseEnvConfig
from environments.records import Item, ScoredDataItem
from environments.run import RunReport

Behaviour = Callable[[int, int], Any]


class CountingEnv(BaseEnv):
    """Items are the numbers from 0, ``items`` of them."""

    items = 10**6

    async def setup(self) -> None:
        self.position = 0

    async def get_next_item(self) -> Item | None:
        if self.position >= self.items:
            return None
        self.position += 1
        return {"id": f"n{self.position - 1}", "number": self.position - 1}


class NumberEnv(CountingEnv):
    """Items are numbers; what a rollout does is given by the test."""

    name = "numbers"
    behaviour: Behaviour = staticmethod(lambda item, call: float(item % 2))

    async def setup(self) -> None:
        await super().setup()
        self.calls: Counter[int] = Counter()

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        number = item["number"]
        self.calls[number] += 1
        result = type(self).behaviour(number, self.calls[number])
        if asyncio.iscoroutine(result):
            result = await result
        if isinstance(result, Exception):
            raise result
        if result is None:
            return None, []
        messages = [{"role": "assistant", "content": f"{number}"}]
        return {"tokens": [1, 2], "masks": [-100, 2], "scores": result, "messages": messages}, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return await self.evaluate_items([{"id": f"e{n}", "number": n} for n in range(4)])


def environment(path: Path, behaviour: Behaviour | None = None, **settings: Any) -> NumberEnv:
    class Env(NumberEnv):
        pass

    if behaviour is not None:
        Env.behaviour = staticmethod(behaviour)
    defaults: dict[str, Any] = {
        "group_size": 2,
        "total_steps": 5,
        "use_wandb": False,
        "progress": "none",
        "ensure_scores_are_not_same": False,
        "include_messages": True,
        "retry_backoff": 0.0,
        "data_path_to_save_groups": str(path),
        "data_dir_to_save_evals": str(path.with_suffix(".evals")),
    }
    return Env(BaseEnvConfig(**{**defaults, **settings}), [APIServerConfig(server_type="nop")])


def process(path: Path, behaviour: Behaviour | None = None, **settings: Any) -> RunReport:
    return asyncio.run(environment(path, behaviour, **settings).process_manager())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def draws(path: Path) -> list[int]:
    return sorted(line["metadata"][0]["draw"] for line in lines(path))
