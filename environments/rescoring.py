"""Judging finished attempts again: with what they left behind, and without a model.

The workflow that made a run is run once more over the same items, but where it would roll an attempt out,
its record is taken from the store and given to ``compute_reward`` again. The new verdict is appended to the
record; the old ones stay, and where no new one can be reached nothing changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from environments.attempt_scope import AttemptScope, GroupScope, current_attempt
from environments.errors import EvidenceMissing, RunAborted
from environments.globs import matches
from environments.outcomes import is_fatal, one_line
from environments.plain_calls import as_user_code
from environments.records import Attempt, Ending, Outcome, Verdict
from environments.results.fingerprint import scrub_text
from environments.scheduler import new_attempt, take_scored_item
from environments.waiting import counted

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.run import Run

Key = tuple[str, str, int]


@dataclass(slots=True)
class Rescoring:
    """One rescoring of one run.

    ``since`` is the Unix time at which it began: what was judged later is not judged once more when an
    interrupted rescoring goes on. ``items`` are globs of item ids, None for all.
    """

    since: float
    items: Sequence[str] | None = None
    evaluation: bool = True
    """Whether the run is an evaluation, of which each item comes up by its id."""
    before: dict[Key, Attempt] = field(default_factory=dict)
    """Attempts as they were before it, of those that are judged."""
    after: dict[Key, Attempt] = field(default_factory=dict)
    """The same ones with their new verdicts."""
    missing: dict[Key, str] = field(default_factory=dict)
    """Why attempts could not be judged again."""
    prompts_changed: set[str] = field(default_factory=set)
    """Items whose prompt is no longer the one that their agents were given."""
    gone: set[str] = field(default_factory=set)
    """Items that the dataset has no more; their attempts are left out of the results."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Why items that it has cannot be judged here."""
    views_changed: set[str] = field(default_factory=set)
    """Items that put something else before an agent by now than they did: another machine, say."""

    async def judge(
        self, environment: BaseEnv, group: GroupScope, number: int, finished: Callable[[Attempt], None]
    ) -> Attempt:
        """Judge one attempt of a group and hand it to ``finished``; it is handed over as it was where that
        is impossible, and not at all where the run never had it."""
        run = environment.active_run
        assert run is not None
        stored = run.stored(group.group_id, group.item_id, number)
        if stored is None:
            absent = new_attempt(environment, group, number)
            absent.ending, absent.outcome = Ending.CANCELLED, Outcome.CANCELLED
            return absent
        if self._wants(stored):
            scope = self.scope_of(environment, group, number)
            error = await _score(environment, scope)
            stored = self.conclude(run, scope, error)
        group.attempts[number] = stored
        finished(stored)
        return stored

    def scope_of(self, environment: BaseEnv, group: GroupScope, number: int) -> AttemptScope:
        """A scope in which a stored attempt is judged. Raises ``EvidenceMissing`` where there is none."""
        run = environment.active_run
        assert run is not None
        stored = run.stored(group.group_id, group.item_id, number)
        if stored is None:
            raise EvidenceMissing(f"the run has no attempt {number} at {group.item_id}")
        record = replace(
            stored,
            provenance=replace(stored.provenance),
            verdicts=list(stored.verdicts),
            failures=list(stored.failures),
            clock=replace(stored.clock),
            metrics=dict(stored.metrics),
            row=dict(stored.row),
        )
        scope = AttemptScope(group, record, rescoring=True)
        environment.prepare_scope(scope)
        record.provenance.tools_hash = stored.provenance.tools_hash
        return scope

    def conclude(self, run: Run, scope: AttemptScope, error: BaseException | None) -> Attempt:
        """Store what came of judging an attempt; returns the attempt as it stands now."""
        record = scope.record
        stored = run.stored(scope.group.group_id, record.item_id, record.attempt)
        assert stored is not None
        self.before[record.key] = _before(stored, self.since)
        if error is None and len(record.verdicts) == len(stored.verdicts):
            error = EvidenceMissing("the environment's code gave no new verdict")
        if error is not None:
            self.missing[record.key] = scrub_text(_reason(error))
            return stored
        verdict = record.verdicts[-1]
        verdict.started_at = verdict.started_at or time.time()
        verdict.evidence = {
            **verdict.evidence,
            "environment_version": run.provenance.environment_version,
        }
        # Else it stays an attempt at the item as it was.
        if record.item_id not in self.prompts_changed | self.views_changed:
            verdict.evidence["item_hash"] = scope.group.slots["item_hash"]
        record.outcome = Outcome.SCORED
        record.clock = stored.clock
        self.after[record.key] = record
        if run.store is not None:
            run.store.append(record)
        return record

    def compare_view(self, record: Attempt, view: str, item_hash: str) -> None:
        """Note an item that puts something else before an agent than it did when ``record`` was made.

        Where that was not written down (by an older version), an item with other content counts as such.
        """
        before = record.provenance.view_hash
        if before != view and (before or record.provenance.item_hash != item_hash):
            self.views_changed.add(record.item_id)

    def chooses(self, attempt: Attempt) -> bool:
        """Whether an attempt is at one of the items that are judged again."""
        return self.items is None or any(matches(attempt.item_id, glob) for glob in self.items)

    def changed(self, key: Key) -> bool:
        """Whether an attempt is worth something else than before."""
        before, after = self.before.get(key), self.after.get(key)
        if before is None or after is None:
            return False
        return before.valid != after.valid or before.reward != after.reward

    def _wants(self, stored: Attempt) -> bool:
        """Whether an attempt is to be judged; notes those that cannot be, and those that were."""
        if not self.chooses(stored):
            return False
        if any(verdict.started_at >= self.since for verdict in stored.verdicts):
            self.before[stored.key], self.after[stored.key] = _before(stored, self.since), stored
            return False
        if stored.ending is None or not stored.ending.graded:
            self.before[stored.key] = stored
            self.missing[stored.key] = f"its rollout did not come to an end ({stored.outcome})"
            return False
        return True


async def _score(environment: BaseEnv, scope: AttemptScope) -> BaseException | None:
    """Have the environment judge a stored attempt; returns what went wrong."""
    record = scope.record
    token = current_attempt.set(scope)
    try:
        with counted(scope.waiting), as_user_code(f"{type(environment).__name__}.collect_trajectory"):
            await _compare_prompts(environment, scope)
            scored, _ = await environment.collect_trajectory(scope.group.item)
        before = len(record.verdicts)
        take_scored_item(record, scored)
        if len(record.verdicts) > before:  # the environment's own word on the score
            record.verdicts[-1].started_at = time.time()
    except Exception as error:  # the border of an attempt
        if is_fatal(error):
            raise RunAborted(one_line(error)) from error
        return error
    finally:
        current_attempt.reset(token)
        for rollout in list(scope.rollouts.values()):
            await rollout.release()
    return None


async def _compare_prompts(environment: BaseEnv, scope: AttemptScope) -> None:
    """Note an item that its agent was given in other words than it would be now."""
    rescoring, prompt_messages = environment.rescoring, getattr(environment, "prompt_messages", None)
    if rescoring is None or prompt_messages is None:
        return
    now = [m.get("content") for m in await prompt_messages(scope.group.item) if m.get("role") == "user"]
    given = [m.get("content") for m in scope.record.messages if m.get("role") == "user"]
    if given and now != given[: len(now)]:
        rescoring.prompts_changed.add(scope.record.item_id)


def _before(stored: Attempt, since: float) -> Attempt:
    """An attempt without the verdicts of this rescoring."""
    verdicts = [verdict for verdict in stored.verdicts if verdict.started_at < since]
    if len(verdicts) == len(stored.verdicts):
        return stored
    outcome = stored.outcome if _scored(verdicts) else Outcome.VERIFIER_ERROR
    return replace(stored, verdicts=verdicts, outcome=outcome)


def _scored(verdicts: Sequence[Verdict]) -> bool:
    return bool(verdicts) and verdicts[-1].reward is not None


def _reason(error: BaseException) -> str:
    if isinstance(error, EvidenceMissing):
        return one_line(error)
    return f"{type(error).__name__}: {one_line(error)}"


def flips(rescoring: Rescoring) -> dict[str, list[tuple[Attempt, Attempt]]]:
    """Attempts whose judgement changed: ``passed``, ``failed``, ``judged`` for the first time, or another
    ``reward`` on the same side."""
    from environments.results.metrics import passed

    found: dict[str, list[tuple[Attempt, Attempt]]] = {"passed": [], "failed": [], "judged": [], "reward": []}
    for key, after in rescoring.after.items():
        before = rescoring.before[key]
        if not before.valid:
            found["judged"].append((before, after))
        elif passed(before) != passed(after):
            found["passed" if passed(after) else "failed"].append((before, after))
        elif before.reward != after.reward:
            found["reward"].append((before, after))
    return found
