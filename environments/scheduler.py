"""Runs attempts: retries by kind of failure, the circuit breaker, and bounded concurrency.

This is the border of an attempt: whatever its code raises becomes a typed outcome with its traceback
kept, except what ends the whole run.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from environments.attempt_scope import AttemptScope, GroupScope, current_attempt, current_group, derive_seed
from environments.errors import BadRequest, HermesError, RunAborted, UserCodeError
from environments.outcomes import is_fatal, one_line, outcome_of
from environments.plain_calls import as_user_code
from environments.real_numbers import is_finite_number
from environments.records import Attempt, Ending, Failure, Outcome, ScoredDataItem, Sequence, Verdict
from environments.results.fingerprint import scrub_text
from environments.waiting import counted

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.run import Run

T = TypeVar("T")

ALIKE_ENVIRONMENT_ERRORS = 3
"""The user's code failing three times in the same place is a bug, not bad luck."""

FAILURES_IN_A_ROW = 20
"""Attempts that all end in the same kind of failure of ours, with none in between that worked."""


@dataclass
class Breaker:
    """Ends a run that can only fail. Pure state: fed with attempts, raises ``RunAborted``."""

    alike: Counter[tuple[str, str]] = field(default_factory=Counter)
    in_a_row: int = 0
    last: Outcome | None = None

    def record(self, attempt: Attempt) -> None:
        """Take note of a finished attempt."""
        if attempt.outcome is Outcome.SCORED:
            self.in_a_row = 0
            return
        failure = attempt.failures[-1] if attempt.failures else None
        if failure is None or attempt.outcome is Outcome.CANCELLED:
            return
        if attempt.outcome is Outcome.ENVIRONMENT_ERROR:
            place = (failure.type, _place(failure))
            self.alike[place] += 1
            if self.alike[place] >= ALIKE_ENVIRONMENT_ERRORS:
                raise RunAborted(
                    f"{ALIKE_ENVIRONMENT_ERRORS} attempts failed alike in the environment's code: "
                    f"{failure.type}: {failure.message}\n{failure.traceback}".rstrip()
                )
        self.in_a_row = self.in_a_row + 1 if self.last == attempt.outcome else 1
        self.last = attempt.outcome
        if self.in_a_row >= FAILURES_IN_A_ROW:
            raise RunAborted(
                f"{self.in_a_row} attempts in a row ended with {attempt.outcome}; the last one: "
                f"{failure.type}: {failure.message}. The same command goes on from here."
            )


def _place(failure: Failure) -> str:
    """Innermost line of the traceback, so that one bug with many texts is one bug."""
    lines = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
    return lines[-1] if lines else failure.message


async def run_attempt(
    environment: BaseEnv, group: GroupScope, number: int, finished: Callable[[Attempt], None]
) -> Attempt:
    """Roll one attempt out, again where it failed through our fault, and hand it to ``finished``.

    Returns what an earlier run had finished without running anything. Raises ``RunAborted`` for what
    would meet every attempt.
    """
    if number in group.finished:
        group.attempts[number] = group.finished[number]
        if environment.active_run is not None:
            environment.active_run.reused += 1
        return group.finished[number]
    run = environment.active_run
    assert run is not None, "attempts run inside a workflow"
    if run.rescoring is not None:
        return await run.rescoring.judge(environment, group, number, finished)
    run.note_changed_item(group.item_id)
    queued = time.monotonic()
    failures: list[Failure] = []
    limits = {
        Outcome.MODEL_ERROR: environment.config.model_error_retries,
        Outcome.SANDBOX_ERROR: environment.config.sandbox_error_retries,
    }
    tries: Counter[Outcome] = Counter()
    for try_number in itertools.count():
        scope = AttemptScope(group, new_attempt(environment, group, number))
        scope.record.try_number, scope.record.failures = try_number, failures
        scope.record.clock.queue = time.monotonic() - queued
        error = await _one_try(environment, run, scope)
        outcome = scope.record.outcome
        assert outcome is not None
        if tries[outcome] >= limits.get(outcome, 0) or (isinstance(error, HermesError) and error.lasting):
            break
        run.note_retry(scope.record)
        await asyncio.sleep(backoff(environment.config.retry_backoff, tries[outcome]))
        queued = time.monotonic()
        tries[outcome] += 1
    group.attempts[number] = scope.record
    finished(scope.record)
    return scope.record


def new_attempt(environment: BaseEnv, group: GroupScope, number: int) -> Attempt:
    """An empty record with its identity and provenance."""
    run = environment.active_run
    assert run is not None, "attempts belong to a run"
    return Attempt(
        run_id=run.run_id,
        environment=environment.environment_name,
        item_id=group.item_id,
        group_id=group.group_id,
        attempt=number,
        seed=derive_seed(group.seed, number),
        provenance=replace(run.provenance, item_hash=group.slots["item_hash"]),
        item=environment.item_info(group.item),
    )


def backoff(first: float, failures: int, ceiling: float = 60.0) -> float:
    """Seconds before the next try: exponential, with full jitter above half."""
    delay: float = min(ceiling, first * 2**failures)
    return delay * random.uniform(0.5, 1.0)


async def _one_try(environment: BaseEnv, run: Run, scope: AttemptScope) -> Exception | None:
    """Roll out and judge once; returns what failed, where the attempt alone is concerned."""
    record = scope.record
    record.started_at = time.time()
    environment.prepare_scope(scope)
    token = current_attempt.set(scope)
    try:
        with counted(scope.waiting), as_user_code(f"{type(environment).__name__}.collect_trajectory"):
            scored, backlog = await environment.collect_trajectory(scope.group.item)
        scope.scored_item = scored
        run.backlog.extend(backlog or [])
        take_scored_item(record, scored)
        record.outcome = Outcome.SCORED
    except asyncio.CancelledError:
        record.ending, record.outcome = Ending.CANCELLED, Outcome.CANCELLED
        raise
    except Exception as error:  # the border of an attempt
        if is_fatal(error):
            raise RunAborted(one_line(error)) from error
        _take_failure(record, error)
        if isinstance(error, HermesError) and (error.lasting or isinstance(error, BadRequest)):
            run.note_hopeless(error, scope.group.item_id)
        return error
    finally:
        current_attempt.reset(token)
        record.ended_at = time.time()
        record.clock.wall = time.monotonic() - scope.started
        record.clock.waiting = scope.waiting.total
        for rollout in list(scope.rollouts.values()):
            await rollout.release()
    return None


def _take_failure(record: Attempt, error: Exception) -> None:
    record.outcome = outcome_of(error)
    if record.ending is None:
        record.ending = Ending.ERROR
    record.failures.append(
        Failure(
            try_number=record.try_number,
            outcome=record.outcome,
            type=type(error).__name__,
            message=scrub_text(one_line(error)),
            traceback=scrub_text("".join(traceback.format_exception(error))),
            at=time.time(),
        )
    )


def take_scored_item(record: Attempt, scored: ScoredDataItem | None) -> None:
    """Take what ``collect_trajectory`` returned into the record, where the rollout has not put it there.

    Raises ``UserCodeError`` where nothing scored came back.
    """
    if scored is None:
        if record.verdict is not None:
            return
        raise UserCodeError("collect_trajectory returned None: the attempt has no score")
    score = scored.get("scores")
    if not is_finite_number(score):
        raise UserCodeError(f"collect_trajectory returned scores = {score!r}; it must be a finite number")
    if record.reward is None or record.reward != float(score or 0.0):
        record.verdicts.append(Verdict(reward=float(score or 0.0), passed=float(score or 0.0) >= 1.0))
    if not record.messages:
        record.messages = list(scored.get("messages") or [])
    tokens = scored.get("tokens")
    placeholder = bool((scored.get("overrides") or {}).get("placeholder_tokens"))
    if tokens and not record.sequences and not placeholder:
        masks = list(scored.get("masks") or [])
        logprobs = list(scored.get("inference_logprobs") or [])
        if len(masks) != len(tokens) or (logprobs and len(logprobs) != len(tokens)):
            raise UserCodeError(
                f"collect_trajectory returned {len(tokens)} tokens, {len(masks)} masks and "
                f"{len(logprobs)} inference_logprobs; the lengths must be equal"
            )
        record.sequences = [Sequence(list(tokens), masks, logprobs)]
    for column in _FURTHER_COLUMNS:
        if scored.get(column) is not None:
            record.row[column] = scored[column]  # type: ignore[literal-required]
    if record.ending is None:
        record.ending = Ending.STOPPED


_FURTHER_COLUMNS = (
    "advantages",
    "ref_logprobs",
    "group_overrides",
    "overrides",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)


async def run_group(environment: BaseEnv, group: GroupScope) -> tuple[Any, list[Any]]:
    """Everything that happens to one group, inside its scope: the environment's ``collect_trajectories``."""
    token = current_group.set(group)
    try:
        return await environment.collect_trajectories(group.item)
    finally:
        current_group.reset(token)


async def gather_or_cancel(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """``asyncio.gather`` that leaves nothing running when one of them fails or all are cancelled."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


class Pool:
    """At most ``size`` tasks at a time; the first that raises ends all of them."""

    def __init__(self, size: int) -> None:
        self._slots = asyncio.Semaphore(size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] | None = None

    @property
    def running(self) -> int:
        """Tasks in flight."""
        return len(self._tasks)

    def check(self) -> None:
        """Raise what earlier work raised."""
        if self._failed is not None and self._failed.done():
            self._failed.result()

    async def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Start some work as soon as a slot is free. Raises what earlier work raised."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        slot = asyncio.ensure_future(self._slots.acquire())
        try:
            waited: set[asyncio.Future[Any]] = {slot, self._failed}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            slot.cancel()
            raise
        if self._failed.done():
            slot.cancel()
            self._failed.result()
        task = asyncio.ensure_future(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again by start() and finish()
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)
        finally:
            self._slots.release()

    async def finish(self) -> None:
        """Wait for everything that was started; raises what any of it raised, after ending the rest."""
        failed = self._failed
        while self._tasks and not (failed is not None and failed.done()):
            waited: set[asyncio.Future[Any]] = {*self._tasks}
            if failed is not None:
                waited.add(failed)
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if failed is not None and failed.done():
            await self.cancel()
            failed.result()

    async def cancel(self) -> None:
        """End everything that runs and wait until it has ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._failed is not None and self._failed.done() and not self._failed.cancelled():
            self._failed.exception()
