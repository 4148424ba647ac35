"""What an evaluation rolls out of its dataset, and what its results are of.

A run may choose fewer items than an earlier one of the same output, by ``limit``, ``item_ids`` or a filter
of the environment's own. The files of results are then still of everything that the output holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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
        self._taken = run.chosen.setdefault(chosen.evaluation, set())
        self._taken.update(group.item_id for group in chosen.groups)
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
            run.rescoring.gone.difference_update(self._groups)

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

    def tell(self, attempts: list[Attempt]) -> None:
        """Have the closing line and ``metrics.json`` say which items the results, ``attempts``, are of."""
        run, evaluation = self.run, self.chosen.evaluation
        planned = {item: number for item, number in self._plan.items() if number}
        run.covered = {
            "items": list(planned),
            "attempts": sum(planned.values()),
            "chosen_by_last_run": len(self._taken),
            "left_out": self._gone,
        }
        remarks = run.remarks[evaluation] = []
        if run.rescoring is not None:
            self._write()
        else:
            remarks += self._of_larger(attempts, planned)
        if self._gone:
            remarks.append(left_out(self._gone))

    def _of_larger(self, attempts: list[Attempt], planned: Mapping[str, int]) -> list[str]:
        """What is said where the output holds more than this run chose."""
        from environments.results.metrics import passed

        mine = [a for a in self.run.attempts if a.group_id == f"{self.chosen.evaluation}/{a.item_id}"]
        others = [item for item in planned if item not in self._taken]
        if not others and sum(planned.values()) <= len(self._taken) * self.environment.config.attempts:
            return []
        own = f"{sum(map(passed, mine))} of {plural(len(mine), 'attempt')} passed"
        found = [
            f"metrics.json and samples.jsonl are of all {plural(len(planned), 'item')} "
            f"({plural(len(attempts), 'attempt')}) of this output, of which this run chose "
            f"{len(self._taken)} ({own})"
        ]
        if changed := [item for item in others if self._changed(item)]:
            found.append(f"{named(changed)} among them changed since: they count as they were")
        return found

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
