"""``serve``: roll groups out for a trainer and leave them with its trajectory API.

A group goes through four hands: it is drawn and rolled out (``_Serving``), written to the spool
(``serve_ledger``), sent until it is confirmed (``serve_sending``), and accounted for. ``serve_link``
says how many may be under way. Nothing is dropped silently: each draw ends as ``sent`` or with a reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.attempt_scope import GroupScope
from environments.errors import ConfigError, HermesError, RunAborted, UserCodeError
from environments.grouping import new_group
from environments.outcomes import is_fatal, one_line
from environments.records import ScoredDataGroup
from environments.run import Run, RunReport, open_run
from environments.scheduler import Pool, backoff, run_group
from environments.trajectory_api.client import TrajectoryClient
from environments.workflows.process import FRUITLESS_DRAWS, ItemFilter
from environments.workflows.serve_evaluations import Evaluations
from environments.workflows.serve_ledger import SENT, Ledger, Spooled
from environments.workflows.serve_link import POLL, Link, Training
from environments.workflows.serve_metrics import PrefixedTracker, ServeMetrics
from environments.workflows.serve_sending import Sender
from environments.workflows.serve_wire import Outgoing, has_placeholders, outgoing

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.results.groups import GroupFile

FAILED_IN_A_ROW = 20
"""Groups without anything to send, one after the other, that end the run."""

TICK = 0.05


async def serve(environment: BaseEnv) -> RunReport:
    """Serve a training until it has made its steps; see ``docs/trajectory-api.md``."""
    from environments.results.store import run_directory

    config = environment.config
    name = config.wandb_name or environment.environment_name
    output = Path(config.data_path_to_save_groups) if config.data_path_to_save_groups else None
    directory = run_directory(output) if output is not None else Path("serve") / name
    _refuse_placeholders_early(environment)
    async with (
        TrajectoryClient(config.rollout_server_url) as client,
        open_run(environment, directory, track=False) as run,
    ):
        run.keep_attempts = False
        run.start_progress("serve", None)
        ledger = Ledger(directory)
        link = Link(client, config, name, ledger.instance(), run.note)
        serving = _Serving(environment, run, link, ledger, output)
        try:
            await serving.join()
            await serving.work()
            return await serving.report()
        finally:
            await serving.close()


def _refuse_placeholders_early(environment: BaseEnv) -> None:
    """Servers that never give token ids are known before anything is rolled out."""
    if environment.config.allow_placeholder_tokens:
        return
    kinds = {config.server_type for config in environment.server_configs}
    if kinds and kinds <= {"oracle", "nop"}:
        raise _no_tokens(f"--openai.server_type {'/'.join(sorted(kinds))}")


def _no_tokens(what: str) -> ConfigError:
    return ConfigError(
        f"{what} gives no token ids, so a trainer would learn from placeholders; use --openai.server_type "
        "vllm, sglang or llamacpp, or accept it with --env.allow_placeholder_tokens true"
    )


class _Serving:
    def __init__(
        self, environment: BaseEnv, run: Run, link: Link, ledger: Ledger, output: Path | None
    ) -> None:
        self.environment, self.run, self.link, self.ledger = environment, run, link, ledger
        config = environment.config
        self.workers = environment.group_concurrency()
        self.pool = Pool(self.workers)
        self.sender = Sender(link, self._settled)
        evaluations = Path(config.data_dir_to_save_evals or ledger.directory / "evals")
        self.evaluations = Evaluations(environment, run, evaluations)
        self.metrics = ServeMetrics(config.max_token_length)
        self.item_filter = ItemFilter(config.item_ids, config.limit)
        self.output = output
        self.file: GroupFile | None = None
        self.draw = 0
        self.spooled: set[int] = set()
        self.begun_at: dict[str, int] = {}
        """Step at which the policy of a spooled group was in force, by key."""
        self.in_flight = 0
        self.failed_in_a_row = 0
        self.not_before = 0.0
        self.fruitless = 0
        self.exhausted = False
        self.logged_step = 0

    # The training.

    async def join(self) -> None:
        """Join the training; go on with what an earlier run of this command left."""
        from environments.plain_calls import run_user_code

        training = await self.link.join()
        await self._begin_session(training)
        await self._open_tracker(training)
        if training.starting_step > 0:
            await run_user_code(self.environment.load_checkpoint)
        if self.output is not None:
            from environments.results.groups import GroupFile

            self.file = GroupFile(self.output, resume=self.environment.config.resume)

    async def _begin_session(self, training: Training) -> None:
        for spooled in self.sender.clear():
            self._settled(spooled, "other_training_run", "another training run has begun")
        waiting = self.ledger.begin(training.run, training.starting_step)
        session = self.ledger.session
        assert session is not None
        self.draw = 0
        self.spooled = {spooled.draw for spooled in waiting}
        self.logged_step = training.starting_step
        if self.run.store is not None:  # attempts of another training are another policy's
            mine = f"{session.number}/"
            attempts = await asyncio.to_thread(self.run.store.attempts)
            self.run.remember([attempt for attempt in attempts if attempt.group_id.startswith(mine)])
        if waiting:
            self.run.note(f"sending {len(waiting)} groups that an earlier run had left on disk")
        for spooled in waiting:
            self.sender.add(spooled)

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
        """Whether all steps are made."""
        return self.last_step is not None and self.link.demand.step >= self.last_step

    # The loop.

    async def work(self) -> None:
        """Keep groups coming until the training is over or there is nothing left to roll out."""
        self.sender.start()
        watching = self.run.watch(lambda: self.pool.running * self.environment.config.group_size)
        looking = asyncio.ensure_future(self._look())
        try:
            if self.environment.config.eval_at_start:
                await self.evaluations.finish(self.link.demand.step)
            while not self.finished:
                self._check(looking)
                if self._may_begin():
                    await self._begin()
                elif self.exhausted and not self.pool.running and not self.sender.waiting:
                    break
                else:
                    await asyncio.sleep(TICK)
            await self.pool.cancel()
            if self.environment.config.eval_at_end:
                await self.evaluations.finish(self.link.demand.step)
            elif self.evaluations.running:
                await self.evaluations.wait()
        finally:
            for task in (watching, looking):
                task.cancel()
            await asyncio.gather(watching, looking, return_exceptions=True)

    def _check(self, looking: asyncio.Task[None]) -> None:
        """Raise what has ended one of the parts that work beside the loop."""
        self.pool.check()
        self.sender.check()
        self.evaluations.check()
        if looking.done():
            looking.result()

    def _may_begin(self) -> bool:
        if self.exhausted or self.pool.running >= self.evaluations.workers(self.workers):
            return False
        if time.monotonic() < self.not_before:
            return False
        return self.link.room(self.in_flight + self.sender.waiting, self.last_step) > 0

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
                raise RunAborted(
                    f"{self.fruitless} items in a row match none of --env.item_ids / --env.limit"
                )
            return
        self.fruitless = 0
        draw, self.draw = self.draw, self.draw + 1
        if draw in self.ledger.done or draw in self.spooled:
            return
        assert self.ledger.session is not None
        group.group_id = f"{self.ledger.session.number}/{draw}"
        group.finished = self.run.earlier(group.group_id, group.item_id, group.slots["item_hash"])
        self.in_flight += self.environment.config.group_size
        await self.pool.start(partial(self._one_group, group))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            before = self.link.demand.step
            if not await self.link.look():
                await self._join_again()
                continue
            await self._came_to(before, self.link.demand.step)

    async def _join_again(self) -> None:
        assert self.link.training is not None
        known = self.link.training.run
        self.run.note("the trajectory API does not know this environment any more; joining again")
        training = await self.link.join()
        session = self.ledger.session
        if training.run != known or session is None or training.starting_step < session.step:
            self.run.note("another training run has begun")
            await self._begin_session(training)

    async def _came_to(self, old: int, new: int) -> None:
        from environments.plain_calls import run_user_code

        self.run.show(done=new, total=self.last_step)
        if new == old:
            return
        self.ledger.reached(new)
        training = self.link.training
        every = training.checkpoint_interval if training else 0
        if every > 0 and new // every > old // every:
            await run_user_code(self.environment.save_checkpoint, new)
        step = self.evaluations.due(old, new)
        if step is not None and not self.finished:
            self.evaluations.begin(step)
        await self._log(new)

    # One group.

    async def _one_group(self, group: GroupScope) -> None:
        started, step = time.monotonic(), self.link.demand.step
        assert group.draw is not None
        session = self.ledger.session
        try:
            parts = await self._roll_out(group)
            if self.ledger.session is not session:
                self._not_sent(group.draw, "other_training_run", "another training run has begun")
                return
            made = 0
            for number, part in enumerate(parts):
                made += await self._take(group, number, part, step)
            if not parts:
                made += await self._take(group, 0, None, step)
        finally:
            self.in_flight -= self.environment.config.group_size
        self.metrics.group_ended(time.monotonic() - started, succeeded=bool(made))
        await self.environment.after_group(group)

    async def _roll_out(self, group: GroupScope) -> list[ScoredDataGroup | None]:
        """The group's data; no data after a failure, which is accounted for by the caller."""
        limit = self.environment.config.worker_timeout
        deadline = asyncio.timeout(limit if limit > 0 else None)
        try:
            async with deadline:
                data, backlog = await run_group(self.environment, group)
        except TimeoutError:
            if not deadline.expired():
                raise
            group.slots["failure"] = ("worker_timeout", f"took longer than worker_timeout, {limit:g} s")
            return []
        except HermesError as error:
            if error.fatal:
                raise
            group.slots["failure"] = ("environment_error", one_line(error))
            return []
        except Exception as error:  # the border to a collect_trajectories of the user's own
            if is_fatal(error):
                raise RunAborted(one_line(error)) from error
            group.slots["failure"] = ("environment_error", f"{type(error).__name__}: {one_line(error)}")
            return []
        self.run.backlog.extend(backlog or [])
        return list(data) if isinstance(data, list) else [data]

    async def _take(self, group: GroupScope, number: int, data: ScoredDataGroup | None, step: int) -> bool:
        """Spool one part of a group; False where there is nothing to send."""
        draw = group.draw
        assert draw is not None
        refusal = self._refusal(group, data)
        if refusal is None and data is not None:
            data = await self.environment.postprocess_histories(data)
            refusal = None if data else ("postprocessed_away", "postprocess_histories returned nothing")
        if refusal is None:
            assert data is not None
            refusal = self._unfit(data) or await self._spool(draw, number, data, step)
        if refusal is not None:
            self._not_sent(draw, *refusal)
            return False
        assert data is not None
        await self.environment.add_rollouts_for_wandb(data, group.item)
        if self.file is not None:
            await asyncio.to_thread(self.file.append, data, draw)
        return True

    def _refusal(self, group: GroupScope, data: ScoredDataGroup | None) -> tuple[str, str] | None:
        if data is not None and data.get("scores"):
            return None
        failed = [a for a in group.attempts.values() if not a.valid]
        kinds = ", ".join(sorted({str(a.outcome) for a in failed}))
        reason: tuple[str, str] = group.slots.get(
            "failure", ("no_scored_attempt", f"no attempt was scored{f' ({kinds})' if kinds else ''}")
        )
        return reason

    def _unfit(self, data: ScoredDataGroup) -> tuple[str, str] | None:
        scores = data["scores"]
        config = self.environment.config
        if config.ensure_scores_are_not_same and len(scores) > 1 and len(set(scores)) == 1:
            return "equal_scores", f"all scores are {scores[0]:g}"
        if has_placeholders(data) and not config.allow_placeholder_tokens:
            raise _no_tokens(f"--openai.server_type {self.environment.server_configs[0].server_type}")
        return None

    async def _spool(
        self, draw: int, number: int, data: ScoredDataGroup, step: int
    ) -> tuple[str, str] | None:
        training = self.link.training
        assert training is not None
        try:
            group = outgoing(
                data,
                rollout_ids=training.rollout_ids,
                max_token_length=training.max_token_length,
                generation_params=self._generation_parameters(),
                policy_version=step,
            )
        except UserCodeError as error:
            return "environment_error", one_line(error)
        if group is None:
            return "too_long", f"every sequence is longer than the trainer's {training.max_token_length}"
        for reason, count in group.notes.items():
            for _ in range(count):
                self.metrics.not_sent(reason)
        self.metrics.group_made(group.trained_tokens)
        key = self.ledger.key(draw, number)
        spooled = await asyncio.to_thread(self._write, key, draw, group)
        self.spooled.add(draw)
        self.begun_at[key] = step
        self.failed_in_a_row = 0
        self.sender.add(spooled)
        return None

    def _write(self, key: str, draw: int, group: Outgoing) -> Spooled:
        from environments.results.durable import encode

        return self.ledger.spool(key, draw, group.members, encode(group.body))

    def _generation_parameters(self) -> dict[str, Any] | None:
        parameters = self.environment.sampling_parameters()
        return {k: v for k, v in parameters.items() if isinstance(v, int | float | str)} or None

    # Accounts.

    def _not_sent(self, draw: int, reason: str, text: str) -> None:
        self.ledger.settle(draw, reason, text=text)
        self.metrics.not_sent(reason)
        self.run.note(f"group {draw} was not sent: {text}")
        if reason in ("equal_scores", "postprocessed_away", "other_training_run", "too_long"):
            return
        self.failed_in_a_row += 1
        self.not_before = time.monotonic() + backoff(1.0, self.failed_in_a_row - 1)
        if self.failed_in_a_row >= FAILED_IN_A_ROW:
            raise RunAborted(
                f"{self.failed_in_a_row} groups in a row gave nothing to send; the last one: {text}"
            )

    def _settled(self, spooled: Spooled, outcome: str, text: str) -> None:
        """What became of a group that waited to be sent."""
        self.spooled.discard(spooled.draw)
        step = self.link.demand.step
        begun = self.begun_at.pop(spooled.key, step)
        if outcome == SENT:
            self.ledger.settle(spooled.draw, SENT, key=spooled.key, step=step)
            self.metrics.group_sent(step - begun)
            spooled.path.unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            spooled.path.rename(spooled.path.with_suffix(f".{outcome}"))
        self._not_sent(spooled.draw, outcome, text)

    async def _log(self, step: int) -> None:
        config = self.environment.config
        if self.metrics.sent < config.min_items_sent_before_logging and not self.finished:
            return
        self.logged_step = step
        demand = self.link.demand
        gauges = {
            "train/step": step,
            "train/queued_sequences": demand.queued,
            "train/unsent_sequences": self.sender.waiting,
            "train/send_retries": self.sender.retries,
        }
        await self.environment.wandb_log({**self.metrics.take(), **gauges})

    async def report(self) -> RunReport:
        """What the run sent, and what it did not and why."""
        outcomes = dict(self.ledger.outcomes)
        sent = outcomes.pop(SENT, 0)
        step, last = self.link.demand.step, self.last_step
        parts = [f"{sent} groups sent, step {step}{f' of {last}' if last else ''}"]
        parts += [f"{count} not sent: {reason}" for reason, count in sorted(outcomes.items())]
        if self.evaluations.done:
            parts.append(f"evaluated at {', '.join(map(str, self.evaluations.done))}")
        if self.evaluations.failed:
            parts.append(f"evaluations that failed: {', '.join(map(str, self.evaluations.failed))}")
        if self.exhausted and not self.finished:
            parts.append("no more items")
        if self.run.scored:
            parts.append(f"mean reward {self.run.reward_sum / self.run.scored:.3f}")
        await self._log(step)
        await self.environment.log_totals(sent)
        return RunReport(
            complete=self.finished and not self.evaluations.failed,
            message="; ".join(parts),
            groups=sent,
            output=self.ledger.directory,
            metrics={"sent": sent, "step": step, **{f"not_sent/{k}": v for k, v in outcomes.items()}},
        )

    async def close(self) -> None:
        """End what runs, say good-bye, keep what was not sent."""
        await self.pool.cancel()
        await self.evaluations.stop()
        await self.sender.stop()
        await self.link.leave()
        if self.file is not None:
            self.file.close()
        self.ledger.close()
