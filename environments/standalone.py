"""Rollouts that user code opens itself, outside an attempt of the scheduler.

A hand-written ``evaluate()`` says ``async with self.rollout(item) as r``. Such a rollout is an
attempt of its own: it is stored when it ends, counted in the progress display, and given back without
running when an interrupted evaluation is resumed.
"""

from __future__ import annotations

import time
import traceback
from contextvars import Token
from typing import TYPE_CHECKING, Any

from environments.attempt_scope import AttemptScope, current_attempt
from environments.grouping import new_group
from environments.outcomes import one_line, outcome_of
from environments.records import Ending, Failure, Item, Outcome
from environments.results.fingerprint import scrub_text
from environments.rollout import Rollout
from environments.scheduler import new_attempt

if TYPE_CHECKING:
    from types import TracebackType

    from environments.hermes_base_env import HermesAgentBaseEnv
    from environments.sandboxes.base import SandboxSpec


class StandaloneRollout(Rollout):
    """A rollout with an attempt of its own."""

    _token: Token[Any] | None = None

    @classmethod
    def begin(
        cls, environment: HermesAgentBaseEnv, item: Item, attempt: int, spec: SandboxSpec
    ) -> StandaloneRollout:
        """Prepare the attempt, or find the one that an earlier run had finished."""
        group = new_group(environment, item, None, prefix="evaluate")
        run = environment.active_run
        if run is not None and run.rescoring is not None:
            scope = run.rescoring.scope_of(environment, group, attempt)
            return cls(environment, scope, spec, environment.group_tools(group), split="eval")
        record = group.finished.get(attempt) or new_attempt(environment, group, attempt)
        scope = AttemptScope(group, record)
        environment.prepare_scope(scope)
        return cls(environment, scope, spec, environment.group_tools(group), split="eval")

    async def __aenter__(self) -> Rollout:
        self.record.started_at = self.record.started_at or time.time()
        self.environment.planned_attempts += 1
        self._token = current_attempt.set(self.scope)
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current_attempt.reset(self._token)
        await super().__aexit__(kind, error, trace)
        run = self.environment.active_run
        if run is None:
            return
        if run.rescoring is not None:
            run.count(run.rescoring.conclude(run, self.scope, error))
        elif self.finished:
            run.count(self.record)
        elif self._conclude(error):
            run.finished(self.record)
        run.show(done=len(run.attempts), total=self.environment.planned_attempts)

    def _conclude(self, error: BaseException | None) -> bool:
        record = self.record
        record.ended_at = time.time()
        record.clock.wall = time.monotonic() - self.scope.started
        record.clock.waiting = self.scope.waiting.total
        if error is None:
            record.outcome = Outcome.SCORED if record.verdict is not None else None
            return record.outcome is not None
        if not isinstance(error, Exception):
            return False
        record.outcome = outcome_of(error)
        record.ending = record.ending or Ending.ERROR
        record.failures.append(
            Failure(
                try_number=0,
                outcome=record.outcome,
                type=type(error).__name__,
                message=scrub_text(one_line(error)),
                traceback=scrub_text("".join(traceback.format_exception(error))),
                at=time.time(),
            )
        )
        return True
