"""TerminalBench2EvalEnv: 89 hard terminal tasks, scored by each task's own tests.

::

    python environments/benchmarks/terminalbench_2/terminalbench2_env.py evaluate \\
        --config environments/benchmarks/terminalbench_2/default.yaml --env.task_filter 'git-*'
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a script of a checkout, which need not be installed
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from pydantic import Field

from environments.base_env import is_overridden
from environments.benchmark_env import BenchmarkEnv
from environments.config import APIServerConfig, EvalHandlingEnum, hosted_model
from environments.harbor_task_env.config import MOST_SECONDS, TERMINAL_AGENT, HarborTaskEnvConfig
from environments.harbor_task_env.tasks_env import HarborTasks
from environments.records import Item, ScoredDataItem


class TerminalBench2EvalConfig(HarborTaskEnvConfig):
    """Settings of Terminal-Bench 2."""

    dataset_name: str | None = Field(
        default="NousResearch/terminal-bench-2",
        description="Dataset of the Hub, or a directory, table or repository of tasks.",
    )
    test_timeout: float = Field(
        default=180, gt=0, le=MOST_SECONDS, description="Seconds for the tests where the task does not say."
    )


class TerminalBench2EvalEnv(HarborTasks, BenchmarkEnv):
    """The benchmark; give it other tasks with ``dataset_name``."""

    name = "terminal-bench-2"
    env_config_cls = TerminalBench2EvalConfig

    @classmethod
    def config_init(cls) -> tuple[HarborTaskEnvConfig, list[APIServerConfig]]:
        """Each task in its own image on Modal; a model through OpenRouter unless told otherwise."""
        config = cls.env_config_cls(
            **TERMINAL_AGENT,
            agent_temperature=0.8,
            terminal_backend="modal",
            group_size=1,
            total_steps=1,
            steps_per_eval=1,
            eval_handling=EvalHandlingEnum.STOP_TRAIN,
            wandb_name=cls.name,
        )
        assert isinstance(config, HarborTaskEnvConfig)
        return config, [hosted_model()]

    def instead_of_training(self, workflow: str) -> str:
        """The environment that trains on the same tasks."""
        tasks = f"--env.dataset_name {self.config.dataset_name}"
        return f"; the same tasks: hermes-env harbor_task {workflow} {tasks}"

    async def eval_items(self) -> Iterable[Item]:
        """One item for each task."""
        return self.items()

    async def rollout_and_score_eval(self, eval_item: Item) -> dict[str, Any]:
        """Work on one task and grade it."""
        async with self.rollout(eval_item) as rollout:
            verdict = await rollout.score(await self.work(rollout))
        return {"reward": verdict.reward, "passed": verdict.passed}

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """One attempt, in the way of a subclass where it has one of its own."""
        if is_overridden(self, "rollout_and_score_eval", TerminalBench2EvalEnv):
            return await BenchmarkEnv.collect_trajectory(self, item)
        return await super().collect_trajectory(item)


if __name__ == "__main__":
    TerminalBench2EvalEnv.cli()
