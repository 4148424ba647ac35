"""``process``: draw items, roll groups out side by side, append each group as it ends.

A group's key is the number of its draw. A resumed run replays ``get_next_item`` and leaves out the
draws whose group is in the file, so groups in flight at the interruption are neither lost nor made
twice, in whatever order they had finished.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.attempt_scope import GroupScope
from environments.cli_output import plural
from environments.errors import ConfigError, HermesError, RunAborted, UnknownName, refusing
from environments.globs import matches
from environments.grouping import new_group
from environments.records import ScoredDataGroup
from environments.run import Run, RunReport, open_run
from environments.scheduler import Pool, run_group
from environments.workflows.log_probabilities import log_probability_trouble

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.results.groups import GroupFile

FRUITLESS_DRAWS = 10_000
"""Draws in a row that the item filters leave out before the run gives up: no such item comes."""

_NAMED_IDS = 1_000


async def process(environment: BaseEnv) -> RunReport:
    """Make ``total_steps`` groups and write them to ``data_path_to_save_groups``."""
    from environments.results.groups import GroupFile
    from environments.results.store import run_directory

    config = environment.config
    if config.total_steps < 1:
        raise ConfigError(f"env.total_steps is {config.total_steps}; process makes at least 1 group")
    path = output_path(config.data_path_to_save_groups or f"data/{environment.environment_name}.jsonl")
    async with open_run(environment, run_directory(path)) as run:
        with GroupFile(path, resume=config.resume) as file:
            with refusing():
                workflow = _Process(environment, run, file)
            run.start_progress("process", config.total_steps, workflow.made())
            if trouble := log_probability_trouble(environment):
                run.note(trouble)
            await workflow.make_groups()
        return await workflow.report(path)


def output_path(name: str | Path) -> Path:
    """The file that is written: where a name leads by symbolic links, so that one file has one store."""
    path = Path(name)
    return path.resolve() if path.is_symlink() else path


class _Process:
    def __init__(self, environment: BaseEnv, run: Run, file: GroupFile) -> None:
        self.environment, self.run, self.file = environment, run, file
        self.done = file.finished()
        self.planned = environment.config.total_steps
        self.found = len(self.done)
        """Groups that an earlier run had written."""
        self.failed_earlier = sum(
            line.get("failed", 0) for draw, line in self.done.items() if draw < self.planned
        )
        """Attempts of those groups that ended without a score."""
        self.left_out: set[int] = set()
        self.failed_groups = 0
        self.exhausted = False
        self.changed = 0
        self.item_filter = ItemFilter(environment.config.item_ids, environment.config.limit)

    async def make_groups(self) -> None:
        workers = self.environment.group_concurrency()
        pool = Pool(workers)
        size = self.environment.config.group_size
        progress = self.run.watch(lambda: pool.running * size)
        try:
            self._show()
            draw = 0
            fruitless = 0
            while draw < self.planned:
                item = await self.environment.next_item()
                if item is None:
                    self.exhausted = True
                    break
                group = new_group(self.environment, item, draw)
                if not self.item_filter.takes(group.item_id):
                    fruitless += 1
                    if fruitless >= FRUITLESS_DRAWS:
                        raise self.item_filter.fruitless(fruitless)
                    await asyncio.sleep(0)  # get_next_item may never wait, and others shall run
                    continue
                fruitless = 0
                draw += 1
                if self._is_done(group):
                    continue
                await pool.start(partial(self._one_group, group))
            await pool.finish()
        finally:
            await pool.cancel()
            progress.cancel()
            self._show()

    def _is_done(self, group: GroupScope) -> bool:
        assert group.draw is not None
        line = self.done.get(group.draw)
        if line is None:
            return False
        if line.get("item_hash") and line["item_hash"] != group.slots["item_hash"]:
            self.changed += 1
            if self.changed == 1:
                self.run.note(
                    f"draw {group.draw} gave {self._difference(group, line)}; its finished group is kept"
                )
        return True

    def _difference(self, group: GroupScope, line: dict[str, Any]) -> str:
        """What is another now than in the earlier run, as far as its records tell."""
        before = line.get("item_id")
        if before != group.item_id:
            return f"the item {group.item_id}, and {before} in the earlier run"
        now = self.environment.item_info(group.item)
        known = self.run.stored(group.group_id, group.item_id, 0)
        was = known.item if known is not None and known.item is not None else None
        if was is None:
            return f"the item {group.item_id} with another content than in the earlier run"
        fields = [f for f in {**was, **now} if was.get(f, _MISSING) != now.get(f, _MISSING)]
        shown = "; ".join(f"{f}: {_short(was.get(f))}, now {_short(now.get(f))}" for f in fields[:3])
        return f"the item {group.item_id} with another content ({shown or 'in what is not noted of it'})"

    async def _one_group(self, group: GroupScope) -> None:
        environment = self.environment
        assert group.draw is not None
        data, backlog = await run_group(environment, group)
        self.run.backlog.extend(backlog or [])
        wrote = 0
        for one in data if isinstance(data, list) else [data]:
            wrote += await self._write(group, one)
        if not wrote:
            self.failed_groups += 1
        await environment.after_group(group)
        self._show()

    async def _write(self, group: GroupScope, data: ScoredDataGroup | None) -> bool:
        environment = self.environment
        assert group.draw is not None
        if data is None or not data.get("scores"):
            self.run.note(f"group {group.draw} ({group.item_id}) has no scored attempt; it was not written")
            return False
        data = await environment.postprocess_histories(data)
        if data is None or not data.get("scores"):
            self.left_out.add(group.draw)
            self.run.note(f"group {group.draw} ({group.item_id}) was left out by postprocess_histories")
            return True
        scores = data["scores"]
        if environment.config.ensure_scores_are_not_same and len(scores) > 1 and len(set(scores)) == 1:
            self.left_out.add(group.draw)
            self.run.note(f"group {group.draw} was left out: all scores are {scores[0]:g}")
            return True
        self.file.append(data, group.draw)
        self.done[group.draw] = {"item_id": group.item_id, "item_hash": group.slots["item_hash"]}
        await environment.add_rollouts_for_wandb(data, group.item)
        return True

    def _show(self) -> None:
        self.run.show(done=self.made())

    def made(self) -> int:
        """Groups of this run's draws; the file may have more, of an earlier run that was to make more."""
        return sum(draw < self.planned for draw in self.done.keys() | self.left_out)

    async def report(self, path: Path) -> RunReport:
        """What the run made, and whether that is all of it."""
        from environments.run import failed_attempts

        run, environment = self.run, self.environment
        failures = failed_attempts(run.attempts)
        planned = self.planned
        made = self.made()
        failed = len(failures) + self.failed_earlier
        complete = not failed and not self.failed_groups and (made >= planned or self.exhausted)
        if not made and self.exhausted:
            complete = False
            run.note("get_next_item() returned None at the first draw: there is nothing to roll out")
        parts = [f"{len(self.done)} groups in {path}"]
        if self.found:
            parts.append(f"{self.found} of them from an earlier run")
        if run.reused:
            parts.append(f"{run.reused} attempts taken from what an earlier run kept in {run.directory}")
        if self.left_out:
            parts.append(f"{len(self.left_out)} left out")
        if failures:
            parts.append(f"{len(failures)} attempts failed")
        if self.failed_earlier:
            parts.append(f"{self.failed_earlier} attempts of finished groups had failed in an earlier run")
        tool_errors = sum(len(attempt.tool_errors) for attempt in run.attempts)
        if tool_errors:
            parts.append(f"{tool_errors} tool calls failed")
        if run.unasked:
            parts.append(f"{run.unasked} attempts without a reply: their prompts do not fit the context")
        if self.failed_groups:
            parts.append(f"{self.failed_groups} groups failed; the same command tries them again")
        if run.scored:
            parts.append(f"mean reward {run.reward_sum / run.scored:.3f}")
        await environment.log_totals(made)
        html = write_page(environment, path)
        if html is not None:
            parts.append(f"page {html}")
        return RunReport(
            complete=complete,
            message="; ".join(parts),
            attempts=run.attempts,
            groups=len(self.done),
            output=path,
            metrics={"mean_reward": run.reward_sum / run.scored if run.scored else None},
        )


def write_page(environment: BaseEnv, path: Path) -> Path | None:
    """The page to look at, beside the output; None where there is nothing to show."""
    from environments.results.html import write_page_for_groups

    return write_page_for_groups(path, title=environment.environment_name) if path.exists() else None


class ItemFilter:
    """Which items a run uses: those whose id matches a glob, and at most ``limit`` different ones."""

    def __init__(self, globs: list[str] | None, limit: int | None) -> None:
        self.globs, self.limit = globs, limit
        self.seen: dict[str, None] = {}
        self.passed_over: dict[str, None] = {}
        """Ids that no glob matches, the first of them: what a message names."""

    def takes(self, item_id: str) -> bool:
        """Whether an item is used; remembers it where the limit counts."""
        if item_id in self.seen:
            return True
        if self.globs is not None and not any(matches(item_id, glob) for glob in self.globs):
            if len(self.passed_over) < _NAMED_IDS:
                self.passed_over[item_id] = None
            return False
        if self.limit is not None and len(self.seen) >= self.limit:
            return False
        self.seen[item_id] = None
        return True

    def fruitless(self, draws: int) -> HermesError:
        """The error for that many items in a row that were left out."""
        for glob in self.globs or []:
            if not any(matches(name, glob) for name in self.seen):
                return UnknownName("item", glob, list(self.passed_over), "--env.item_ids")
        return RunAborted(f"{draws} items in a row were left out by --env.item_ids / --env.limit")


def check_globs(globs: list[str] | None, known: list[str]) -> None:
    """Raise ``UnknownName`` for a glob that matches no item."""
    for glob in globs or []:
        if not any(matches(name, glob) for name in known):
            raise UnknownName("item", glob, known, f"--env.item_ids (of {plural(len(known), 'item')})")


_MISSING = object()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def as_list(value: Any) -> list[Any]:
    """A list, whether one thing or several were given."""
    return list(value) if isinstance(value, list | tuple) else [value]
