"""Trying tasks out without a model: is each solvable, and worth nothing to who does nothing?

Two attempts at each task: the oracle runs its solution and must get the full reward, the nop policy does
nothing and must get none. Tasks that cannot be run here are said and not attempted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from environments.config import APIServerConfig
from environments.errors import NotSupported, SandboxBroken, SandboxError, VerifierError
from environments.harbor_task_env.config import HarborTaskEnvConfig
from environments.harbor_task_env.tasks_env import HarborTasks
from environments.records import Attempt, Item, Outcome, ScoredDataItem, Verdict
from environments.tasks.model import Keep, Step, Task

if TYPE_CHECKING:
    from environments.inference.session import Session
    from environments.rollout import Rollout
    from environments.sandboxes.base import Sandbox

POLICIES = ("oracle", "nop")


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What was found out about one task."""

    name: str
    status: str
    """``ok``, ``wrong`` or ``not run``."""
    oracle: float | None = None
    nop: float | None = None
    seconds: float | None = None
    """Time of the oracle's attempt, from the start of its sandbox to the verdict."""
    keep: str = ""
    """The least of the agent's processes that its solution needs alive while the tests run: a value of
    ``[verifier] keep``; empty where that is not known."""
    problem: str = ""


class TaskValidation(HarborTasks):
    """Rolls out both policies; ``reports`` is what came of it."""

    name = "task-validation"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.refused: dict[str, list[str]] = {}
        self.broken: dict[str, str] = {}
        self.needed: dict[str, Keep] = {}
        """What the solution of each task needs alive; see ``TaskReport.keep``."""

    @classmethod
    def config_init(cls) -> tuple[HarborTaskEnvConfig, list[APIServerConfig]]:
        """Local sandboxes, in which each task's Dockerfile is replayed; no model."""
        config = HarborTaskEnvConfig(
            enabled_toolsets=["terminal"],
            terminal_backend="local",
            sandbox_error_retries=1,
            verifier_error_retries=0,
            eval_concurrency=4,
            use_wandb=False,
        )
        return config, [APIServerConfig(server_type="oracle")]

    def refuse_broken(self, broken: Mapping[str, str]) -> None:
        """Note them; the others are run."""
        self.broken = dict(broken)

    def refuse_misfits(self, tasks: list[Task]) -> None:
        """Note them; the others are run."""
        self.refused = {task.name: found for task in tasks if (found := self.misfits(task))}

    def misfits(self, task: Task) -> list[str]:
        """See ``HarborTasks.misfits``; a task without a solution cannot be validated either."""
        missing = [step for step in task.steps if not step.solve_script.is_file()]
        return super().misfits(task) + (["solution/solve.sh is missing"] if missing else [])

    def items(self) -> list[dict[str, Any]]:
        """Each task that can be run, once for each policy."""
        items = [item for item in super().items() if item["task_name"] not in self.refused]
        return [
            {**item, "id": f"{item['task_name']}/{policy}", "policy": policy}
            for item in items
            for policy in POLICIES
        ]

    def dataset_items(self) -> None:
        """Its items are not the dataset's."""
        return

    def policy_of(self, item: Item) -> str | None:
        """The item's own policy."""
        return str(item["policy"])

    async def open_session(self, rollout: Rollout) -> Session:
        """The item's own policy."""
        from environments.inference.policies import NopSession

        return NopSession() if rollout.item["policy"] == "nop" else await super().open_session(rollout)

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """One attempt. What the backend turns out to be unable to do concerns this task alone."""
        try:
            return await super().collect_trajectory(item)
        except NotSupported as error:
            self.refused[item["task_name"]] = [str(error)]
            raise SandboxError(str(error)) from error

    async def grade(self, task: Task, step: Step, sandbox: Sandbox, *, last: bool) -> Verdict:
        """As any task's, and where it was solved, again with ever less of the agent alive."""
        verdict = await super().grade(task, step, sandbox, last=last)
        keep, found = step.verifier.keep or "listeners", verdict
        while last and (found.reward or 0.0) >= 1.0:
            self.needed[task.name] = keep
            if keep == "none" or (keep == "listeners" and not found.kept):
                self.needed[task.name] = "none"
                break
            keep = "listeners" if keep == "all" else "none"
            less = replace(step, verifier=replace(step.verifier, keep=keep))
            try:
                found = await super().grade(task, less, sandbox, last=True)
            except (VerifierError, SandboxBroken):
                break
        return verdict

    async def get_next_item(self) -> Item | None:
        """There is nothing to train on."""
        return None

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Roll out all there is."""
        items = self.items()
        return await self.evaluate_items(items) if items else {"tasks": float(len(self.tasks))}

    def reports(self, attempts: list[Attempt]) -> list[TaskReport]:
        """One report for each task, from the attempts of a run."""
        found = {attempt.item_id: attempt for attempt in attempts}
        return [self._report(name, found) for name in sorted([*self.tasks, *self.broken])]

    def _report(self, name: str, found: dict[str, Attempt]) -> TaskReport:
        if name in self.broken:
            return TaskReport(name, "wrong", problem=self.broken[name])
        if name in self.refused:
            return TaskReport(name, "not run", problem="; ".join(self.refused[name]))
        unmade = [
            a for p in POLICIES if (a := found.get(f"{name}/{p}")) and a.outcome is Outcome.SANDBOX_ERROR
        ]
        if unmade:
            text = unmade[0].failures[-1].message if unmade[0].failures else "no word"
            return TaskReport(
                name, "not run", problem=f"no machine as it needs: {text.removeprefix(f'{name}: ')}"
            )
        oracle, nop = (found.get(f"{name}/{policy}") for policy in POLICIES)
        if oracle is None or nop is None:
            return TaskReport(name, "not run", problem="the run ended before it")
        problems = [*_problems("the oracle", oracle, best=True), *_problems("doing nothing", nop, best=False)]
        return TaskReport(
            name,
            "wrong" if problems else "ok",
            oracle.reward,
            nop.reward,
            oracle.clock.wall,
            self.needed.get(name, "") if not problems else "",
            "; ".join(dict.fromkeys(problems)),
        )


def _problems(who: str, attempt: Attempt, *, best: bool) -> list[str]:
    if attempt.outcome is not Outcome.SCORED:
        text = attempt.failures[-1].message if attempt.failures else ""
        text = text.removeprefix("verification 1: ")
        return [f"{attempt.outcome}: {text}"]
    reward = attempt.reward or 0.0
    verdict = attempt.verdict
    if best and reward < 1.0:
        output = str(verdict.evidence.get("output", "")) if verdict is not None else ""
        last = output.strip().splitlines()[-1:] or [f"ended with {attempt.ending}"]
        return [f"{who} gets {reward:g} ({last[0][:120]})"]
    if not best and reward > 0.0:
        return [f"{who} gets {reward:g}"]
    return []
