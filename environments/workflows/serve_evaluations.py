"""Evaluations while training: due at multiples of ``steps_per_eval``, one at a time."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from environments.config import EvalHandlingEnum
from environments.errors import RunAborted
from environments.outcomes import is_fatal, one_line

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.run import Run

logger = logging.getLogger(__name__)


class Evaluations:
    """Runs the environment's ``evaluate()`` beside training. ``done`` and ``failed`` hold steps."""

    def __init__(self, environment: BaseEnv, run: Run, directory: Path) -> None:
        self.environment, self.run, self.directory = environment, run, directory
        self.done: list[int] = []
        self.failed: list[int] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether an evaluation runs."""
        return self._task is not None and not self._task.done()

    def workers(self, workers: int) -> int:
        """Groups that training may have in flight now, of ``workers`` otherwise."""
        config = self.environment.config
        if not self.running or config.eval_handling is EvalHandlingEnum.NONE:
            return workers
        if config.eval_handling is EvalHandlingEnum.STOP_TRAIN:
            return 0
        return max(1, int(workers * config.eval_limit_ratio))

    def due(self, old: int, new: int) -> int | None:
        """The step to evaluate at, where training has come to it or past it; None else."""
        every = self.environment.config.steps_per_eval
        if every <= 0 or new // every <= old // every:
            return None
        return int(new // every * every)

    def begin(self, step: int) -> None:
        """Evaluate at a step, unless another evaluation still runs."""
        if self.running:
            self.run.note(f"no evaluation at step {step}: the one before still runs")
            self.failed.append(step)
            return
        self._task = asyncio.ensure_future(self._evaluate(step))

    async def finish(self, step: int) -> None:
        """Evaluate at a step and wait for it."""
        if self._task is not None:
            await asyncio.wait([self._task])
        self.begin(step)
        assert self._task is not None
        await self._task

    async def wait(self) -> None:
        """Wait for the evaluation that runs."""
        if self._task is not None:
            await self._task

    def check(self) -> None:
        """Raise what ends the whole run."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def stop(self) -> None:
        """End what runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _evaluate(self, step: int) -> None:
        from environments.plain_calls import run_user_code

        logger.info("evaluating at step %d", step)
        self.run.evaluation_directory = self.directory / f"step-{step}"
        try:
            await run_user_code(self.environment.evaluate)
        except Exception as error:  # the border to the user's code
            if is_fatal(error):
                raise RunAborted(f"evaluation at step {step}: {one_line(error)}") from error
            self.failed.append(step)
            self.run.note(f"evaluation at step {step} failed: {type(error).__name__}: {one_line(error)}")
            logger.info("traceback of the evaluation at step %d", step, exc_info=error)
        else:
            self.done.append(step)
