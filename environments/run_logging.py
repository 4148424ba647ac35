"""What a run tells its tracker and the files of its evaluations."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.records import ScoredDataGroup
    from environments.results.tracker import Tracker
    from environments.run import Run

logger = logging.getLogger(__name__)


class ExampleRollouts:
    """Conversations and scores for the tracker's table of rollouts."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, float]] = []

    def add(self, group: ScoredDataGroup, *, per_group: int, most: int) -> None:
        """Take ``per_group`` rollouts of a group (negative: all); the latest ``most`` are kept."""
        from environments.results.summary_text import trajectory_text

        rows = list(zip(group.get("messages") or [], group.get("scores") or [], strict=False))
        for conversation, score in rows if per_group < 0 else rows[:per_group]:
            self._rows.append((trajectory_text(conversation), score))
        del self._rows[: -most or None]

    async def log(self, tracker: Tracker) -> None:
        """Send what has come since the last time."""
        import asyncio  # at 36 ms too slow for --help

        rows, self._rows = self._rows, []
        if rows:
            table = [list(row) for row in rows]
            await asyncio.to_thread(tracker.log_table, "train/rollouts", ["text", "score"], table)


async def log_metrics(run: Run | None, metrics: Mapping[str, Any]) -> None:
    """Metrics for the run's tracker, where there is one."""
    import asyncio  # at 36 ms too slow for --help

    if run is not None and run.tracker is not None:
        await asyncio.to_thread(run.tracker.log, metrics)


async def log_evaluation(
    environment: BaseEnv,
    metrics: dict[str, Any],
    samples: Sequence[Mapping[str, Any]],
    *,
    name: str,
    model_name: str,
    times: tuple[float | None, float | None],
    generation_parameters: Mapping[str, Any],
    verbose: bool,
) -> None:
    """Write ``metrics.json`` and ``samples.jsonl`` where the run or its configuration wants them.

    ``times`` are the evaluation's start and end, seconds since the epoch; now where None.
    """
    import asyncio  # at 36 ms too slow for --help

    from environments.results.evaluate_log import write_evaluation
    from environments.results.summary_text import metric_lines

    run, config = environment.active_run, environment.config
    named = config.data_dir_to_save_evals
    if run is not None:
        named = run.evaluation_directory or named or run.directory
    now = time.time()
    start, end = (now if at is None else at for at in times)
    await asyncio.to_thread(
        write_evaluation,
        Path(named or f"evals/{environment.environment_name}"),
        name=name,
        model_name=model_name,
        metrics=metrics,
        samples=samples,
        start_time=start,
        end_time=end,
        generation_parameters={"max_new_tokens": config.max_token_length, **generation_parameters},
        covers=run.covered if run is not None else None,
    )
    if run is not None:
        run.evaluations_logged += 1
    if verbose:
        for line in metric_lines(metrics):
            logger.info("%s", line)
