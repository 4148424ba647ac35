"""``evaluate``: run an environment's evaluation, and roll out and judge its items with resume.

``evaluate(environment)`` is the workflow around the user's own ``evaluate()``; ``evaluate_items`` is
what such a method calls to have items rolled out side by side, resumed, counted and aggregated.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from environments.attempt_scope import GroupScope
from environments.cli_output import plural
from environments.errors import RunAborted
from environments.records import Attempt, Item, Outcome
from environments.run import RunReport, failed_attempts, open_run
from environments.scheduler import Pool, run_attempt
from environments.workflows.selection import OutputResults, select

if TYPE_CHECKING:
    from environments.base_env import BaseEnv


async def evaluate(environment: BaseEnv) -> RunReport:
    """Run ``environment.evaluate()`` and say honestly what came of it."""
    from environments.plain_calls import run_user_code

    directory = Path(
        environment.config.data_dir_to_save_evals
        or f"evals/{environment.config.wandb_name or environment.environment_name}"
    )
    async with open_run(environment, directory) as run:
        run.covers_output = True
        run.start_progress("evaluate", None)
        returned = await run_user_code(environment.evaluate)
        metrics = returned if isinstance(returned, dict) else {}
        if not run.attempts and not run.evaluations_logged and not environment.model_calls and not metrics:
            raise RunAborted(
                f"evaluate() of {type(environment).__name__} did nothing: no rollout, no model call, no "
                "evaluate_log. Write it, for instance with `await self.evaluate_items(items)`"
            )
        failures = failed_attempts(run.attempts)
        planned = run.environment.planned_attempts
        complete = not failures and len(run.attempts) >= planned
        parts = [f"{plural(len(run.attempts), 'attempt')} in {directory}"]
        earlier = sum(attempt.started_at < run.started for attempt in run.attempts)
        if earlier:
            parts.append(f"{earlier} of them from an earlier run")
        if failures:
            kinds = Counter(str(attempt.outcome) for attempt in failures)
            parts.append(
                f"{len(failures)} failed ({', '.join(f'{n} {k}' for k, n in kinds.items())}); the same "
                "command tries them again"
            )
        parts += [*_doubts(run.attempts), *chain(*run.remarks.values())]
        if run.unasked:
            parts.append(
                f"{plural(run.unasked, 'attempt')} without a reply: their prompts do not fit the context"
            )
        return RunReport(
            complete=complete,
            message="; ".join(parts),
            attempts=run.attempts,
            metrics=metrics,
            output=directory,
        )


def _doubts(attempts: Iterable[Attempt]) -> list[str]:
    """Zeros that may be unjust, and those of a forged reward, for the closing line."""
    verdicts = [attempt.verdict for attempt in attempts if attempt.valid and attempt.verdict is not None]
    contested = sum(verdict.contested for verdict in verdicts)
    tampered = sum(verdict.tampered for verdict in verdicts)
    found = []
    if contested:
        found.append(
            f"{contested} contested: the tests came to no verdict on what was left, which counts as 0 (the "
            "agent's doing, or tests that break on good work; 'hermes-env show' has the reasons)"
        )
    if tampered:
        found.append(f"{tampered} tampered: a forged reward, which counts as 0")
    return found


async def evaluate_items(
    environment: BaseEnv, items: Iterable[Item], *, name: str | None = None, log: bool = True
) -> dict[str, float]:
    """Roll out and judge items, ``config.attempts`` times each, and aggregate.

    Finished attempts of an earlier run are not run again. Results are stored as they end; metrics and
    samples are written also when the evaluation is interrupted. The metrics that are returned are of the
    items that ``limit`` and ``item_ids`` leave; the files are of all that the output holds.
    """
    from environments.results.metrics import evaluation_metrics

    config, run = environment.config, environment.active_run
    assert run is not None
    chosen = select(environment, list(items), name or "eval")
    groups = chosen.groups
    if not groups and run.rescoring is None:
        raise RunAborted(f"{environment.environment_name} has no items: there is nothing to evaluate")
    output = OutputResults.of(environment, chosen)
    environment.planned_attempts += len(groups) * config.attempts
    started = time.time()
    ended: list[Attempt] = []
    pool = Pool(environment.evaluation_concurrency())
    watching = run.watch(lambda: pool.running)
    metrics: dict[str, float] = {}

    async def one(group: GroupScope, number: int) -> None:
        if number in group.finished:
            ended.append(group.finished[number])
            run.count(group.finished[number])
        else:
            await run_attempt(environment, group, number, finished)
        if run.keep_attempts:  # else this is an evaluation within a training, which shows its own progress
            run.show(done=len(run.attempts), total=environment.planned_attempts)

    def finished(attempt: Attempt) -> None:
        ended.append(attempt)
        run.finished(attempt)

    try:
        for number in range(config.attempts):
            for group in groups:
                await pool.start(partial(one, group, number))
        await pool.finish()
    finally:
        watching.cancel()
        await pool.cancel()
        attempts = list(ended)
        planned = output.planned(only_chosen=True)
        metrics = evaluation_metrics(attempts, elapsed=time.time() - started, planned=planned)
        if log and attempts:
            await _log(environment, output, attempts, metrics, started)
    return metrics


async def _log(
    environment: BaseEnv,
    output: OutputResults,
    ended: list[Attempt],
    metrics: dict[str, float],
    started: float,
) -> None:
    from environments.results.evaluate_log import sample_from_attempt
    from environments.results.metrics import evaluation_metrics

    run = environment.active_run
    assert run is not None
    if run.rescoring is not None and not run.rescoring.after:
        return  # nothing was judged: the results stand
    attempts, whole = output.with_earlier(ended), metrics
    if run.covers_output:
        elapsed = metrics["eval/evaluation_time_seconds"]
        whole = evaluation_metrics(attempts, elapsed=elapsed, planned=output.planned())
        output.tell(attempts)
    await environment.evaluate_log(
        metrics=whole,
        samples=[sample_from_attempt(a) for a in attempts if a.outcome is not Outcome.CANCELLED],
        start_time=started,
        end_time=time.time(),
        generation_parameters=environment.sampling_parameters(),
    )
    await environment.wandb_log(dict(metrics))
