"""HarborTaskEnv: train and evaluate on any set of tasks in the Harbor format.

::

    hermes-env harbor_task process --env.dataset_name my_tasks/ --env.terminal_backend docker
    hermes-env harbor_task evaluate --env.dataset_name my_tasks/ --openai.server_type oracle
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # run as a script of a checkout, which need not be installed
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from environments.config import APIServerConfig, hosted_model
from environments.harbor_task_env.config import TERMINAL_AGENT, HarborTaskEnvConfig
from environments.harbor_task_env.tasks_env import HarborTasks
from environments.records import Item


class HarborTaskEnv(HarborTasks):
    """Tasks in a shuffled order, for ever; each task's own tests are the reward."""

    name = "harbor-task"
    env_config_cls = HarborTaskEnvConfig

    @classmethod
    def config_init(cls) -> tuple[HarborTaskEnvConfig, list[APIServerConfig]]:
        """Groups of four in Docker; a model through OpenRouter unless told otherwise."""
        config = HarborTaskEnvConfig(
            **TERMINAL_AGENT, agent_temperature=1.0, terminal_backend="docker", wandb_name="harbor-task"
        )
        return config, [hosted_model()]

    async def setup(self) -> None:
        """Load the tasks; the order is the run's seed's."""
        await super().setup()
        self.drawn = 0

    async def get_next_item(self) -> Item:
        """The next task; each once before any comes again, in another order every time."""
        items = self.items()
        epoch, position = divmod(self.drawn, len(items))
        random.Random(f"{self.config.seed}/{epoch}").shuffle(items)
        self.drawn += 1
        return items[position]

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Every task, ``--env.attempts`` times."""
        return await self.evaluate_items(self.items())


if __name__ == "__main__":
    HarborTaskEnv.cli()
