"""One run of one workflow: its identity, store, progress, tracker and circuit breaker.

An environment has one active run at a time. What a run makes is append-only and on disk before it is
counted; whatever ends the run, ``close`` releases what it started.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environments
from environments.errors import BadRequest, HermesError, RunAborted, StoreError, refusing
from environments.lag_monitor import lag_monitor
from environments.outcomes import one_line
from environments.records import Attempt, Ending, Outcome, Provenance
from environments.results.reading import item_hashes
from environments.scheduler import Breaker
from environments.source_code import changed_files, code_of, git_commit, sources_of, version_of

if TYPE_CHECKING:
    from environments.attempt_scope import GroupScope
    from environments.base_env import BaseEnv
    from environments.rescoring import Rescoring
    from environments.results.progress import Progress
    from environments.results.store import RunStore
    from environments.results.tracker import Tracker

logger = logging.getLogger(__name__)

ALIKE_HOPELESS = 3
"""The same refusal three times with nothing that worked: every attempt would meet it."""


@dataclass
class RunReport:
    """How a run ended. ``complete`` means that everything planned is there and valid."""

    complete: bool
    message: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    groups: int = 0
    output: Path | None = None

    @property
    def exit_code(self) -> int:
        """0 where the run is complete, else 1."""
        return 0 if self.complete else 1


class Run:
    """What every part of a workflow shares. Made by ``open_run``."""

    def __init__(self, environment: BaseEnv, directory: Path | None) -> None:
        self.environment = environment
        self.directory = directory
        self.run_id = uuid.uuid4().hex[:12]
        self.store: RunStore | None = None
        self.tracker: Tracker | None = None
        self.progress: Progress | None = None
        self.breaker = Breaker()
        self.backlog: deque[Any] = deque()
        self.provenance = Provenance(framework_version=environments.__version__)
        self.attempts: list[Attempt] = []
        """Attempts that ended in this run, and those that it found finished."""
        self.keep_attempts = True
        """Whether they are kept in memory; a training that goes on for days only counts them."""
        self.evaluation_directory: Path | None = None
        """Where ``evaluate_log`` writes, where the workflow says so."""
        self.covers_output = False
        """Whether metrics and samples are of all that the output holds, and not of what this run chose."""
        self.evaluated: dict[str, dict[str, GroupScope]] = {}
        """Items that evaluations of this run were given, by evaluation."""
        self.chosen: dict[str, set[str]] = {}
        """Those of them that it rolls out."""
        self.covered: dict[str, Any] | None = None
        """What ``metrics.json`` says that it is of; see ``evaluate_log``."""
        self.remarks: dict[str, list[str]] = {}
        """What the closing line adds, by evaluation."""
        self.unasked = 0
        """Attempts that ended before the first reply, as their prompt does not fit."""
        self.errors: Counter[str] = Counter()
        self.retries: Counter[str] = Counter()
        self.tokens = 0
        self.reward_sum = 0.0
        self.scored = 0
        self.evaluations_logged = 0
        self.reused = 0
        """Attempts that were not run again, as an earlier run had kept them."""
        self.started = time.time()
        self.done = 0
        self.running = 0
        self.rescoring: Rescoring | None = environment.rescoring
        """Judges finished attempts again, where that is what this run is for."""
        self._changed_items: dict[str, int] = {}
        self._earlier: dict[tuple[str, str], list[Attempt]] = {}
        self._hopeless: defaultdict[str, list[str]] = defaultdict(list)
        self._worked = False

    def earlier(self, group_id: str, item_id: str, item_hash: str) -> dict[int, Attempt]:
        """Attempts of a group that an earlier run had scored, by number."""
        if self.rescoring is not None:
            return {}
        scored = [attempt for attempt in self._earlier.get((group_id, item_id), []) if attempt.valid]
        same = {attempt.attempt: attempt for attempt in scored if item_hash in item_hashes(attempt)}
        if scored and not same:
            self._changed_items.setdefault(item_id, len(scored))
        return same

    def note_changed_item(self, item_id: str) -> None:
        """An item is rolled out: say once where that is because it has changed."""
        attempts = self._changed_items.get(item_id)
        if attempts:
            self._changed_items[item_id] = 0
            self.note(
                f"{item_id} has changed since the earlier run: its finished attempts there ({attempts}) are "
                "not used, and it is rolled out again"
            )

    def note_changed_code(self) -> None:
        """Note the version of the environment's code, and say where attempts of an earlier run are of
        another one."""
        assert self.store is not None
        sources = sources_of(type(self.environment))
        version = version_of(sources)
        self.provenance.environment_version = version
        known = self.store.note_sources(version, sources)
        if self.rescoring is not None:
            return
        others: Counter[str] = Counter()
        frameworks: Counter[str] = Counter()
        for attempt in (a for found in self._earlier.values() for a in found if a.valid):
            made, verdict = attempt.provenance, attempt.verdict
            judged = verdict.evidence.get("environment_version") if verdict is not None else None
            if made.environment_version and version not in (made.environment_version, judged):
                others[made.environment_version] += 1
            if made.framework_version not in ("", self.provenance.framework_version):
                frameworks[made.framework_version] += 1
        if others:
            files = {f for name in others for f in changed_files(known.get(name, {}), sources)}
            which = f" ({', '.join(sorted(files)[:5])})" if files else ""
            self.note(
                f"the environment's code{which} has changed since {others.total()} finished attempts were "
                "made; they keep their scores. 'hermes-env rescore' judges them again, "
                "--env.resume false rolls all out anew"
            )
        for name, attempts in frameworks.items():
            self.note(
                f"{attempts} finished attempts were made with version {name} of hermes-environments, and "
                f"this is {self.provenance.framework_version}"
            )

    def stored(self, group_id: str, item_id: str, number: int) -> Attempt | None:
        """The last record of an attempt that an earlier run left, whatever became of it."""
        found = [a for a in self._earlier.get((group_id, item_id), []) if a.attempt == number]
        return found[-1] if found else None

    def everything(self) -> list[Attempt]:
        """Every attempt that an earlier run left, of several tries the one that came last."""
        from environments.results.reading import final_attempts

        return final_attempts(attempt for found in self._earlier.values() for attempt in found)

    def remember(self, attempts: list[Attempt]) -> None:
        """Take over what an earlier run left in the store."""
        for attempt in attempts:
            self._earlier.setdefault((attempt.group_id, attempt.item_id), []).append(attempt)

    def finished(self, attempt: Attempt) -> None:
        """An attempt has ended: store it, count it, and see whether the run can go on."""
        if self.rescoring is not None:  # which stores what it judges
            self.count(attempt)
            return
        if self.store is not None:
            self.store.append(attempt)
        self.count(attempt)
        self.breaker.record(attempt)

    def count(self, attempt: Attempt) -> None:
        """Count an attempt in what progress shows."""
        if self.keep_attempts:
            self.attempts.append(attempt)
        self.tokens += attempt.usage.completion_tokens
        if attempt.ending is Ending.CONTEXT_LENGTH and not attempt.turns:
            self._note_unasked(attempt)
        if attempt.valid:
            self._worked = True
            self.scored += 1
            self.reward_sum += attempt.reward or 0.0
        elif attempt.outcome is not None:
            self.errors[attempt.outcome] += 1
            failure = attempt.failures[-1] if attempt.failures else None
            if failure is not None:
                self.note(
                    f"{attempt.item_id} attempt {attempt.attempt}: {attempt.outcome}: {failure.message}"
                )

    def _note_unasked(self, attempt: Attempt) -> None:
        """A score without one reply tells of the configuration, not of the model: say so, once."""
        self.unasked += 1
        if self.unasked == 1:
            self.note(
                f"{attempt.item_id} attempt {attempt.attempt}: its prompt and tools alone are longer than "
                "the model's context, so the model was not asked; shorten them, or serve the model with a "
                "longer context (openai.context_length where the server does not tell it)"
            )

    def note_retry(self, attempt: Attempt) -> None:
        """An attempt failed and is tried again."""
        self.retries[str(attempt.outcome)] += 1
        failure = attempt.failures[-1]
        self.note(
            f"{attempt.item_id} attempt {attempt.attempt}, try {attempt.try_number + 1}: "
            f"{attempt.outcome}: {failure.message}; trying again"
        )

    def note_hopeless(self, error: HermesError, item_id: str) -> None:
        """A request was refused, or an image cannot be had: where nothing has worked yet and the same goes
        on (with other items, for an image), the run ends."""
        self._hopeless[str(error)].append(item_id)
        found = self._hopeless[str(error)]
        if self._worked or len(set(found) if error.lasting else found) < ALIKE_HOPELESS:
            return
        if isinstance(error, BadRequest):
            raise RunAborted(f"the model server refuses every request: {one_line(error)}") from error
        raise RunAborted(one_line(error)) from error

    def start_progress(self, title: str, total: int | None, done_before: int = 0) -> None:
        """Begin to show progress; what an earlier run had done counts neither for rate nor time left."""
        from environments.results.progress import Progress

        config, name = self.environment.config, self.environment.environment_name
        self.done = done_before
        self.progress = Progress(
            total, mode=config.progress, title=f"{name} {title}", done_before=done_before
        )
        self.progress.start()

    def watch(self, running: Callable[[], int]) -> asyncio.Task[None]:
        """Keep the number of running rollouts in the display up to date; cancel the task to stop."""

        async def watch() -> None:
            while True:
                await asyncio.sleep(0.5)
                self.running = running()
                self.show()

        return asyncio.ensure_future(watch())

    def show(self, *, done: int | None = None, total: int | None = None) -> None:
        """Bring the progress display up to date."""
        self.done = self.done if done is None else done
        if self.progress is None:
            return
        self.progress.total = self.progress.total if total is None else total
        from environments.results.progress import Snapshot

        self.progress.update(
            Snapshot(
                done=self.done,
                running=self.running,
                failed=sum(self.errors.values()),
                mean_reward=self.reward_sum / self.scored if self.scored else None,
                tokens=self.tokens,
                errors=self.errors + self.retries,
            )
        )

    def note(self, text: str) -> None:
        """A line for the user, where it does not tear the progress display."""
        if self.progress is not None:
            self.progress.note(text)
        else:
            logger.warning("%s", text)


@asynccontextmanager
async def open_run(environment: BaseEnv, directory: Path | None, *, track: bool = True) -> AsyncIterator[Run]:
    """Open the store, start the servers, and release everything at the end, in reverse order.

    With ``track=False`` the workflow opens the run's tracker itself.
    """
    from environments.plain_calls import subtasks_of_user_code

    loop = asyncio.get_running_loop()
    run = Run(environment, directory)
    with ExitStack() as stack:
        stack.enter_context(subtasks_of_user_code(loop))
        stack.enter_context(lag_monitor(loop))
        if directory is not None:
            with refusing():
                _open_store(run, directory, stack)
        environment.active_run = run
        try:
            with refusing():
                await environment.start()
                if track:
                    await _open_tracker(run)
                await environment.run_setup()
                if run.store is not None:
                    run.note_changed_code()
            yield run
        except OSError as error:
            raise StoreError(f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")) from error
        finally:
            if run.progress is not None:
                run.progress.finish()
            await _close(environment, run)


def _open_store(run: Run, directory: Path, stack: ExitStack) -> None:
    from environments.results.fingerprint import content_hash, defaults, result_affecting, scrub
    from environments.results.store import Manifest, RunStore

    environment = run.environment
    affecting = result_affecting(environment.config, environment.server_configs)
    manifest = Manifest(
        run_id=run.run_id,
        environment=environment.environment_name,
        framework_version=environments.__version__,
        created_at=run.started,
        config={
            "env": scrub(environment.config),
            "openai": [scrub(config) for config in environment.server_configs],
        },
        result_affecting=affecting,
        code=code_of(type(environment)),
    )
    run.store = stack.enter_context(
        RunStore.open(
            directory,
            manifest,
            resume=environment.config.resume or run.rescoring is not None,
            any_settings=run.rescoring is not None,
            defaults=defaults(environment.config, environment.server_configs),
        )
    )
    run.run_id = run.store.manifest.run_id
    run.provenance.config_hash = content_hash(affecting)
    run.provenance.git_commit = git_commit(type(environment))
    run.provenance.dataset = getattr(environment.config, "dataset_name", None)
    run.remember(run.store.attempts())


async def _open_tracker(run: Run) -> None:
    from environments.results.fingerprint import scrub
    from environments.results.tracker import Tracker

    environment = run.environment
    name = environment.config.wandb_name or environment.environment_name
    run.tracker = await asyncio.to_thread(
        Tracker.open, environment.config.use_wandb, name, scrub(environment.config)
    )


async def _close(environment: BaseEnv, run: Run) -> None:
    work = asyncio.ensure_future(_release(environment, run))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await work
        raise


async def _release(environment: BaseEnv, run: Run) -> None:
    try:
        await environment.close()
    finally:
        environment.active_run = None
        if run.tracker is not None:
            await asyncio.to_thread(run.tracker.finish)


def failed_attempts(attempts: list[Attempt]) -> list[Attempt]:
    """Those that ended without a score."""
    return [attempt for attempt in attempts if attempt.outcome is not Outcome.SCORED]
