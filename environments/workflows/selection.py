"""What an evaluation rolls out of its dataset, and what its results are of.

A run may choose fewer items than an earlier one of the same output, by ``limit``, ``item_ids`` or a filter
of the environment's own. The files of results are then still of everything that the output holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from environments.attempt_scope import GroupScope
from environments.cli_output import plural
from environments.grouping import new_group
from environments.records import Attempt, Item
from environments.results.coverage import Coverage, left_out, named, split
from environments.results.reading import final_attempts, item_hashes
from environments.workflows.process import ItemFilter, check_globs

if TYPE_CHECKING:
    from environments.base_env import BaseEnv
    from environments.results.metrics import Planned


@dataclass(frozen=True, slots=True)
class Chosen:
    """The groups that an evaluation rolls out, of all that it was given."""

    evaluation: str
    """Its name: the prefix of its groups."""
    groups: list[GroupScope]
    given: list[GroupScope]


def select(environment: BaseEnv, items: list[Item], evaluation: str) -> Chosen:
    """Groups for items, each with an id of its own, and those that the configuration leaves."""
    groups = [new_group(environment, item, None, prefix=evaluation) for item in items]
    repeated = {name for name, count in Counter(g.item_id for g in groups).items() if count > 1}
    for number, group in enumerate(groups):
        if group.item_id in repeated:
            group.item_id = f"{group.item_id}#{number}"
            group.group_id = f"{evaluation}/{group.item_id}"
    check_globs(environment.config.item_ids, [group.item_id for group in groups])
    item_filter = ItemFilter(environment.config.item_ids, environment.config.limit)
    chosen = [group for group in groups if item_filter.takes(group.item_id)]
    run = environment.active_run
    assert run is not None
    for group in chosen:
        group.finished = run.earlier(group.group_id, group.item_id, group.slots["item_hash"])
    return Chosen(evaluation, chosen, groups)


class OutputResults:
    """The results of one evaluation in its output. Made by ``of`` before anything is rolled out."""

    def __init__(self, environment: BaseEnv, chosen: Chosen) -> None:
        run = environment.active_run
        assert run is not None
        self.environment, self.chosen, self.run = environment, chosen, run
        known = run.evaluated.setdefault(chosen.evaluation, {})  # `evaluate` may give its items in parts
        known.update({group.item_id: group for group in [*_dataset(environment, chosen), *chosen.given]})
        self._groups = dict(known)
        self._taken = {group.item_id for group in chosen.groups}
        self._coverage = Coverage()
        self._earlier: list[Attempt] = []
        self._gone: list[str] = []
        self._plan: dict[str, int] = {}

    @classmethod
    def of(cls, environment: BaseEnv, chosen: Chosen) -> OutputResults:
        """What the output holds of the dataset as it is now; writes down which items those are."""
        found, run = cls(environment, chosen), environment.active_run
        if run is not None and run.covers_output and run.store is not None:
            found._take_over(Coverage.read(run.store.directory))
            if run.rescoring is None:
                found._write()
        return found

    def _take_over(self, known: Coverage) -> None:
        run, prefix = self.run, f"{self.chosen.evaluation}/"
        attempts = final_attempts([*run.everything(), *run.attempts])
        mine = [a for a in attempts if a.group_id == prefix + a.item_id]
        before = known.evaluations.get(self.chosen.evaluation, {})
        sizes = Counter(attempt.item_id for attempt in mine)
        asked = 0 if run.rescoring is not None else self.environment.config.attempts
        self._plan = {
            item: max(before.get(item, 0), sizes[item], asked if item in self._taken else 0)
            for item in self._groups
        }
        known.evaluations[self.chosen.evaluation] = self._plan
        self._coverage = known
        self._earlier, self._gone = split(mine, known)
        if run.rescoring is not None:
            run.rescoring.gone.update(self._gone)

    def _write(self) -> None:
        assert self.run.store is not None
        self._coverage.write(self.run.store.directory)

    def planned(self, *, only_chosen: bool = False) -> list[Planned]:
        """How many attempts there should be at each item: of what this run chose, or of the output."""
        from environments.results.metrics import Planned

        environment, plan = self.environment, self._plan
        if only_chosen and self.run.rescoring is None:
            plan = dict.fromkeys((group.item_id for group in self.chosen.groups), environment.config.attempts)
        return [
            Planned(
                environment.environment_name, item, number, environment.item_info(self._groups[item].item)
            )
            for item, number in plan.items()
            if number
        ]

    def with_earlier(self, ended: list[Attempt]) -> list[Attempt]:
        """The attempts that ended in this run, after those that the output holds beside them.

        What this run rolls out anew since the item has changed is not counted as it was before.
        """
        keys = {attempt.key for attempt in ended}
        return [*(a for a in self._earlier if a.key not in keys and not self._replaced(a)), *ended]

    def tell(self, attempts: list[Attempt], ended: list[Attempt]) -> None:
        """Have the closing line and ``metrics.json`` say which items the results, ``attempts``, are of;
        ``ended`` are those of this run."""
        from environments.results.metrics import passed

        run = self.run
        if run.rescoring is not None:
            self._write()
        items = list(dict.fromkeys(attempt.item_id for attempt in attempts))
        planned = [item for item, number in self._plan.items() if number]
        run.covered = {
            "items": planned,
            "attempts": sum(self._plan.values()),
            "chosen_by_last_run": len(self.chosen.groups),
            "left_out": self._gone,
        }
        others = [item for item in planned if item not in self._taken]
        more = sum(self._plan.values()) - len(self.chosen.groups) * self.environment.config.attempts
        if run.rescoring is None and (others or more > 0):
            own = f"{sum(map(passed, ended))} of {plural(len(ended), 'attempt')} passed"
            run.remarks.append(
                f"metrics.json and samples.jsonl are of all {plural(len(planned), 'item')} "
                f"({plural(len(attempts), 'attempt')}) of this output, of which this run chose "
                f"{len(self.chosen.groups)} ({own})"
            )
        changed = [item for item in items if item in others and self._changed(item)]
        if run.rescoring is None and changed:
            run.remarks.append(f"{named(changed)} among them changed since: they count as they were")
        if self._gone:
            run.remarks.append(left_out(self._gone))

    def _replaced(self, attempt: Attempt) -> bool:
        return self.run.rescoring is None and attempt.item_id in self._taken and not self._current(attempt)

    def _changed(self, item: str) -> bool:
        return any(a.item_id == item and not self._current(a) for a in self._earlier)

    def _current(self, attempt: Attempt) -> bool:
        return self._groups[attempt.item_id].slots["item_hash"] in item_hashes(attempt)


def _dataset(environment: BaseEnv, chosen: Chosen) -> list[GroupScope]:
    """Groups for all items of the dataset, where the evaluation was given fewer."""
    run = environment.active_run
    if run is None or not run.covers_output:
        return []
    items: Any = environment.dataset_items()
    return [new_group(environment, item, None, prefix=chosen.evaluation) for item in items or ()]
