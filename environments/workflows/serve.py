"""``serve``: roll groups out for a trainer and leave them with its trajectory API.

A group goes through three hands: it is rolled out and written to the spool (``serve_groups``), sent until
it is confirmed (``serve_sending``), and its draw is entered as ``sent`` or with a reason
(``serve_ledger``). ``serve_link`` says how many may be under way.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from environments.errors import ConfigError, refusing
from environments.grouping import new_group
from environments.run import Run, RunReport, open_run
from environments.scheduler import Pool
from environments.trajectory_api.client import TrajectoryClient
from environments.workflows.log_probabilities import log_probability_trouble
from environments.workflows.process import FRUITLESS_DRAWS, ItemFilter
from environments.workflows.serve_evaluations import Evaluations
from environments.workflows.serve_groups import Groups, no_tokens
from environments.workflows.serve_ledger import SENT, Ledger
from environments.workflows.serve_link import POLL, Link, Training
from environments.workflows.serve_metrics import PrefixedTracker
from environments.workflows.serve_wire import CUT_ROWS

if TYPE_CHECKING:
    from environments.base_env import BaseEnv

TICK = 0.05
"""Seconds between two looks whether another group may begin."""


async def serve(environment: BaseEnv) -> RunReport:
    """Serve a training until it has made its steps; see ``docs/trajectory-api.md``."""
    from environments.results.store import run_directory

    config = environment.config
    name = config.wandb_name or environment.environment_name
    output = Path(config.data_path_to_save_groups) if config.data_path_to_save_groups else None
    directory = run_directory(output) if output is not None else Path("serve") / name
    _refuse_placeholders(environment)
    async with (
        TrajectoryClient(config.rollout_server_url) as client,
        open_run(environment, directory, track=False) as run,
    ):
        if trouble := log_probability_trouble(environment):
            raise ConfigError(trouble)
        run.keep_attempts = False
        run.start_progress("serve", None)
        ledger = Ledger(directory)
        link = Link(client, config, name, ledger.instance(), run.note)
        serving = _Serving(environment, run, link, ledger)
        try:
            with refusing():
                await serving.join(output)
            await serving.work()
            return await serving.report()
        finally:
            await serving.close()


def _refuse_placeholders(environment: BaseEnv) -> None:
    """Known before anything is rolled out: the built-in rollout has no token ids over such servers."""
    built_in = type(environment).collect_trajectory.__module__ == "environments.hermes_base_env"
    kinds = {config.server_type for config in environment.server_configs}
    if built_in and not kinds & {"vllm", "sglang"} and not environment.config.allow_placeholder_tokens:
        raise no_tokens(f"--openai.server_type {'/'.join(sorted(kinds))}")


class _Serving:
    def __init__(self, environment: BaseEnv, run: Run, link: Link, ledger: Ledger) -> None:
        self.environment, self.run, self.link, self.ledger = environment, run, link, ledger
        config = environment.config
        self.workers = environment.group_concurrency()
        self.pool = Pool(self.workers)
        self.groups = Groups(environment, run, link, ledger)
        directory = Path(config.data_dir_to_save_evals or ledger.directory / "evals")
        self.evaluations = Evaluations(environment, run, directory)
        self.item_filter = ItemFilter(config.item_ids, config.limit)
        self.step = 0
        """The step that has been dealt with: evaluated, saved, logged."""
        self.draw = 0
        self.fruitless = 0
        self.exhausted = False

    # The training.

    async def join(self, output: Path | None) -> None:
        """Join the training; go on with what an earlier run of this command left."""
        from environments.plain_calls import run_user_code

        training = await self.link.join()
        await self._begin_session(training)
        await self._open_tracker(training)
        self._use_checkpoints(training)
        if training.starting_step > 0:
            await run_user_code(self.environment.load_checkpoint)
        if output is not None:
            self.groups.write_to(output)

    def _use_checkpoints(self, training: Training) -> None:
        """In the trainer's directory, as the original has them, or beside our own files."""
        base = Path(training.checkpoint_directory or self.ledger.directory)
        environment = self.environment
        environment.checkpoint_directory = base / "env_checkpoints" / training.wandb_name
        environment.curr_step = training.starting_step

    async def _begin_session(self, training: Training) -> None:
        self.groups.give_up()
        waiting = self.ledger.begin(training.run, training.starting_step)
        self.draw, self.step = 0, training.starting_step
        session = self.ledger.session
        if self.run.store is not None and session is not None:
            # Attempts of another training are another policy's, evaluations another step's.
            attempts = await asyncio.to_thread(self.run.store.attempts)
            self.run.remember([a for a in attempts if a.group_id.startswith(f"{session.number}/")])
        if waiting:
            self.run.note(f"sending {len(waiting)} groups that an earlier run had left on disk")
        self.groups.begin_session(waiting)

    async def _open_tracker(self, training: Training) -> None:
        from environments.results.fingerprint import scrub
        from environments.results.tracker import Tracker

        config = self.environment.config
        tracker = await asyncio.to_thread(
            Tracker.open,
            config.use_wandb,
            training.wandb_name,
            scrub(config),
            training.project,
            group=training.group,
        )
        self.run.tracker = PrefixedTracker(tracker, training.wandb_name)

    @property
    def last_step(self) -> int | None:
        """The step at which this environment is done; None where nobody has said."""
        training = self.link.training
        steps = [self.environment.config.total_steps, training.num_steps if training else -1]
        return min((step for step in steps if step > 0), default=None)

    @property
    def finished(self) -> bool:
        """Whether all steps are made and dealt with."""
        return self.last_step is not None and self.step >= self.last_step

    # The loop.

    async def work(self) -> None:
        """Keep groups coming until the training is over or there is nothing left to roll out."""
        config = self.environment.config
        self.groups.sender.start()
        watching = self.run.watch(lambda: self.pool.running * config.group_size)
        looking = asyncio.ensure_future(self._look())
        try:
            if config.eval_at_start:
                await self.evaluations.finish(self.step)
            while not self.finished:
                self._check(looking)
                if self._may_begin():
                    await self._begin()
                elif self.exhausted and not self.groups.underway:
                    break
                else:
                    await asyncio.sleep(TICK)
            self.groups.training_over()
            await self.pool.cancel()
            await self.evaluations.wait()
            if config.eval_at_end and self.step not in self.evaluations.done:
                await self.evaluations.finish(self.step)
        finally:
            for task in (watching, looking):
                task.cancel()
            await asyncio.gather(watching, looking, return_exceptions=True)

    def _check(self, looking: asyncio.Task[None]) -> None:
        """Raise what has ended one of the parts that work beside the loop."""
        self.pool.check()
        self.groups.sender.check()
        self.evaluations.check()
        if looking.done():
            looking.result()

    def _may_begin(self) -> bool:
        if self.exhausted or self.pool.running >= self.evaluations.workers(self._fair_workers()):
            return False
        if time.monotonic() < self.groups.pause_until:
            return False
        return self.link.room(self.groups.underway, self.last_step) > 0

    def _fair_workers(self) -> int:
        """Groups in flight that this environment's weight beside the others allows."""
        if self.environment.config.inference_weight < 0:
            return self.workers
        return max(1, int(self.workers * min(1.0, self.link.demand.env_weight)))

    async def _begin(self) -> None:
        item = await self.environment.next_item()
        if item is None:
            self.exhausted = True
            self.run.note("get_next_item has no more items")
            return
        group = new_group(self.environment, item, self.draw)
        if not self.item_filter.takes(group.item_id):
            self.fruitless += 1
            if self.fruitless >= FRUITLESS_DRAWS:
                raise self.item_filter.fruitless(self.fruitless)
            return
        self.fruitless = 0
        draw, self.draw = self.draw, self.draw + 1
        if draw in self.ledger.done or draw in self.groups.spooled:
            return
        assert self.ledger.session is not None
        group.group_id = f"{self.ledger.session.number}/{draw}"
        group.finished = self.run.earlier(group.group_id, group.item_id, group.slots["item_hash"])
        self.groups.rolling.add(draw)
        await self.pool.start(partial(self.groups.roll_out, group))

    async def _look(self) -> None:
        """Watch the training, for as long as this task lives."""
        last, drawn = time.monotonic(), self.draw
        while True:
            await asyncio.sleep(POLL)
            now = time.monotonic()
            self.groups.metrics.looked(now - last, self.draw - drawn)
            last, drawn = now, self.draw
            if await self.link.look():
                await self._came_to(self.link.demand.step)
            else:
                await self._join_again()

    async def _join_again(self) -> None:
        assert self.link.training is not None
        known = self.link.training.run
        self.run.note("the trajectory API does not know this environment any more; joining again")
        training = await self.link.join()
        session = self.ledger.session
        if training.run != known or session is None or training.starting_step < session.step:
            self.run.note("another training run has begun")
            await self._begin_session(training)

    async def _came_to(self, step: int) -> None:
        """The trainer has come to a step: save, evaluate, log what is due."""
        from environments.plain_calls import run_user_code

        self.run.show(done=step, total=self.last_step)
        if step == self.step:
            return
        await asyncio.to_thread(self.ledger.reached, step)
        every = self.link.training.checkpoint_interval if self.link.training else 0
        if every > 0 and step // every > self.step // every:
            await run_user_code(self.environment.save_checkpoint, step // every * every)
        due = self.evaluations.due(self.step, step)
        if due is not None:
            self.evaluations.begin(due)
        self.step = self.environment.curr_step = step
        if self.groups.metrics.sent >= self.environment.config.min_items_sent_before_logging:
            await self._log()

    # The end.

    async def _log(self) -> None:
        gauges = {
            "train/step": self.step,
            "train/queued_sequences": self.link.demand.queued,
            "train/unsent_sequences": self.groups.sender.waiting,
            "train/send_retries": self.groups.sender.retries,
        }
        await self.environment.wandb_log({**self.groups.metrics.take(), **gauges})

    async def report(self) -> RunReport:
        """What the run sent, and what it did not and why."""
        outcomes = dict(self.ledger.outcomes)
        sent, rows = outcomes.pop(SENT, 0), self.ledger.rows
        evaluated, failed = self.evaluations.done, self.evaluations.failed
        parts = [f"{sent} groups sent, step {self.step}{f' of {self.last_step}' if self.last_step else ''}"]
        parts += [f"{count} not sent: {reason}" for reason, count in sorted(outcomes.items())]
        parts += [f"{rows[name]} sequences {words}" for name, words in CUT_ROWS.items() if rows[name]]
        if self.groups.spooled:
            parts.append(f"{len(self.groups.spooled)} not sent: training_over")
        if evaluated:
            parts.append(f"evaluated at {', '.join(map(str, evaluated))}")
        if failed:
            parts.append(f"evaluations that failed: {', '.join(map(str, failed))}")
        if self.exhausted and not self.finished:
            parts.append("no more items")
        if self.run.scored:
            parts.append(f"mean reward {self.run.reward_sum / self.run.scored:.3f}")
        await self._log()
        await self.environment.log_totals(sent)
        return RunReport(
            complete=self.finished and not failed,
            message="; ".join(parts),
            groups=sent,
            output=self.ledger.directory,
            metrics={
                "sent": sent,
                "step": self.step,
                **{f"not_sent/{k}": v for k, v in (outcomes | rows).items()},
            },
        )

    async def close(self) -> None:
        """End what runs, say good-bye, keep what was not sent."""
        await self.pool.cancel()
        await self.evaluations.stop()
        await self.groups.close()
        await self.link.leave()
        self.ledger.close()
