"""A small environment with real tokens, and a training around it, for the tests of ``serve``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.config import APIServerConfig, BaseEnvConfig
from environments.records import Item, ScoredDataItem
from environments.run import RunReport
from tests.trajectory_api.running import Server, Trainer
from tests.workflows.number_environment import CountingEnv

Behaviour = Callable[[int], Any]


class TokenEnv(CountingEnv):
    """Items are numbers; every token of a rollout is its item's number."""

    name = "tokens"
    pause = 0.0
    behaviour: Behaviour | None = None
    evaluations: list[int]

    async def setup(self) -> None:
        await super().setup()
        self.rolling = 0
        self.most_rolling = 0
        self.evaluations = []
        self.saved: list[int] = []

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        number = item["number"]
        self.rolling += 1
        self.most_rolling = max(self.most_rolling, self.rolling)
        try:
            await asyncio.sleep(self.pause)
            score: Any = float(number % 2)
            if self.behaviour is not None:
                score = self.behaviour(number)
                score = await score if asyncio.iscoroutine(score) else score
            if isinstance(score, Exception):
                raise score
        finally:
            self.rolling -= 1
        tokens = [number, number, number]
        row: ScoredDataItem = {
            "tokens": tokens,
            "masks": [-100, *tokens[1:]],
            "inference_logprobs": [1.0, -0.5, -0.1],
            "scores": score,
        }
        return row, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        self.evaluations.append(self.rolling)
        await asyncio.sleep(0.2)

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        self.saved.append(step)


def make(
    directory: Path, url: str, cls: type[TokenEnv] = TokenEnv, behaviour: Behaviour | None = None, **env: Any
) -> TokenEnv:
    """An environment whose run directory is in ``directory``."""
    defaults: dict[str, Any] = {
        "group_size": 2,
        "total_steps": 5,
        "rollout_server_url": url,
        "use_wandb": False,
        "progress": "none",
        "ensure_scores_are_not_same": False,
        "retry_backoff": 0.0,
        "steps_per_eval": 0,
        "max_num_workers": 4,
        "data_path_to_save_groups": str(directory / "groups.jsonl"),
    }
    one = cls(BaseEnvConfig(**{**defaults, **env}), [APIServerConfig(server_type="nop")])
    one.behaviour = behaviour
    return one


def serve(environment: TokenEnv, timeout: float = 200.0) -> RunReport:
    """Run ``serve`` to its end."""

    async def run() -> RunReport:
        async with asyncio.timeout(timeout):
            return await environment.env_manager()

    return asyncio.run(run())


def train(server: Server, steps: int, **registration: Any) -> tuple[Trainer, threading.Thread]:
    """A trainer in a thread of its own that wants so many batches."""
    trainer = Trainer(server.url, num_steps=steps, **registration)
    trainer.register()
    thread = threading.Thread(target=trainer.run, args=(steps,), daemon=True)
    thread.start()
    return trainer, thread


def ledger(directory: Path) -> dict[int, str]:
    """What became of each draw."""
    lines = (directory / "groups.run" / "groups-1.jsonl").read_text().splitlines()
    return {entry["draw"]: entry["outcome"] for entry in map(json.loads, lines)}
