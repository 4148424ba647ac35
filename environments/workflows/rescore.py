"""Run a workflow's items through once more, so that each finished attempt is judged again.

An evaluation calls the environment's own ``evaluate()``, which writes its metrics and samples anew. A run of
``process`` replays its draws; then the lines of the groups that changed are written anew, and the earlier
output is kept under another name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.attempt_scope import GroupScope
from environments.errors import RunAborted
from environments.grouping import new_group
from environments.records import Attempt, ScoredDataGroup, TrainingUse
from environments.run import Run, open_run
from environments.scheduler import Pool

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.rescoring import Rescoring


async def rescore(environment: BaseEnv, rescoring: Rescoring, directory: Path, output: Path | None) -> int:
    """Judge the finished attempts of the run in ``directory``; returns how many it has.

    ``output`` is the file of groups of a run of ``process``, None for an evaluation. Raises ``RunAborted``
    where nothing can be judged.
    """
    from environments.plain_calls import run_user_code

    if not hasattr(environment, "kept_sandbox"):
        raise RunAborted(
            f"{environment.environment_name} rolls out and scores in one method, so that no attempt can be "
            "judged by itself; a HermesAgentBaseEnv with compute_reward can"
        )
    environment.rescoring = rescoring
    rescoring.evaluation = output is None
    async with open_run(environment, directory, track=False) as run:
        run.covers_output = output is None
        stored = run.everything()
        if not stored:
            raise RunAborted(f"{directory} has no finished attempt: there is nothing to judge")
        run.start_progress("rescore", len(stored))
        if output is None:
            await run_user_code(environment.evaluate)
        else:
            groups = await _judge_draws(environment, run, stored)
            await _rewrite(environment, run, output, groups)
        for attempt in stored:
            if attempt.key in rescoring.before or not rescoring.chooses(attempt):
                continue
            if attempt.item_id not in rescoring.gone:
                why = rescoring.unavailable.get(attempt.item_id, "its item does not come up any more")
                rescoring.before[attempt.key], rescoring.missing[attempt.key] = attempt, why
        return len(stored)


async def _judge_draws(environment: BaseEnv, run: Run, stored: list[Attempt]) -> list[GroupScope]:
    """Draw until every group of the run has come up, and judge its attempts."""
    rescoring = environment.rescoring
    assert rescoring is not None
    numbers: dict[tuple[str, str], list[int]] = {}
    for attempt in stored:
        numbers.setdefault((attempt.group_id, attempt.item_id), []).append(attempt.attempt)
    last = max((int(a.group_id) for a in stored if a.group_id.isdecimal()), default=-1)
    chosen = {attempt.item_id for attempt in stored}
    pool = Pool(environment.group_concurrency())
    groups: list[GroupScope] = []
    draw, fruitless = 0, 0
    try:
        while draw <= last and fruitless <= _FRUITLESS_DRAWS:
            item = await environment.next_item()
            if item is None:
                break
            group = new_group(environment, item, draw)
            # A draw that an item filter left out got no number.
            if not _takes(environment, group.item_id, chosen):
                fruitless += 1
                continue
            draw, fruitless = draw + 1, 0
            attempts = numbers.get((group.group_id, group.item_id), [])
            if attempts:
                groups.append(group)
                await pool.start(partial(_judge_group, environment, run, group, attempts))
        await pool.finish()
    finally:
        await pool.cancel()
    return groups


_FRUITLESS_DRAWS = 10_000


def _takes(environment: BaseEnv, item_id: str, chosen: set[str]) -> bool:
    filtered = environment.config.limit is not None or environment.config.item_ids is not None
    return not filtered or item_id in chosen


async def _judge_group(environment: BaseEnv, run: Run, group: GroupScope, numbers: list[int]) -> None:
    assert environment.rescoring is not None

    def finished(attempt: Attempt) -> None:
        run.finished(attempt)
        run.show(done=len(run.attempts))

    await asyncio.gather(
        *(environment.rescoring.judge(environment, group, number, finished) for number in numbers)
    )


async def _rewrite(environment: BaseEnv, run: Run, output: Path, groups: list[GroupScope]) -> None:
    """Write the output anew where the score of a group has changed."""
    rescoring = environment.rescoring
    assert rescoring is not None
    changed: dict[int, ScoredDataGroup] = {}
    for group in groups:
        if any(rescoring.changed(attempt.key) for attempt in group.attempts.values()):
            data = await _group_of(environment, group)
            if data is not None and group.draw is not None:
                changed[group.draw] = data
    if changed:
        kept = await asyncio.to_thread(_replace_lines, output, changed, environment.environment_name)
        run.note(f"{output} was written anew" + (f"; the earlier one is {kept}" if kept else ""))


def _replace_lines(output: Path, changed: Mapping[int, ScoredDataGroup], title: str) -> Path | None:
    """Put groups in the place of those of the same draws; where the earlier file is now."""
    from environments.results.durable import copy_aside, encode, read_lines, write_via_temporary
    from environments.results.groups import GroupFile
    from environments.results.html import write_page_for_groups

    draws: dict[int, int] = {}
    lines: list[bytes] = []
    if output.exists():
        with GroupFile(output) as file:
            draws = {info["line"]: draw for draw, info in file.finished().items()}
        for number, line in read_lines(output):
            draw = draws.get(number, -1)
            lines.append(encode(changed[draw]) if draw in changed else line)
    lines += [encode(data) for draw, data in changed.items() if draw not in draws.values()]
    kept = copy_aside(output)
    write_via_temporary(output, lambda path: path.write_bytes(b"".join(line + b"\n" for line in lines)))
    write_page_for_groups(output, title=title)
    return kept


async def _group_of(environment: BaseEnv, group: GroupScope) -> ScoredDataGroup | None:
    from environments.results.groups import group_from_attempts

    config = environment.config
    data: Any = group_from_attempts(
        group.draw or 0,
        [group.attempts[number] for number in sorted(group.attempts)],
        include_messages=config.include_messages,
        config=config,
        over_limit=TrainingUse(config.over_limit_attempts),
        last_branch=config.branch_reward == "last",
    )
    if not data["scores"]:
        return None
    data = await environment.postprocess_histories(data)
    return data if data and data.get("scores") else None
