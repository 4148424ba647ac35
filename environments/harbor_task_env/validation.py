"""Trying tasks out without a model: is each solvable, and worth nothing to who does nothing?

The oracle runs a task's solution and must get the full reward, the nop policy does nothing and must get
none, each as often as ``attempts`` says. Tasks with a fault, and those that cannot be run here, are said
and not attempted; whatever goes wrong with one of them does not end the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from environments.config import APIServerConfig
from environments.errors import ImageBuildFailed, NotSupported, SandboxBroken, SandboxError, VerifierError
from environments.harbor_task_env.config import HarborTaskEnvConfig
from environments.harbor_task_env.preparing import TaskFault
from environments.harbor_task_env.reporting import NEEDS, NOP, POLICIES, Seen, TaskReport, report_of
from environments.harbor_task_env.tasks_env import HarborTasks
from environments.records import Attempt, Item, ScoredDataItem, Verdict
from environments.scheduler import Breaker
from environments.tasks.lint import faults, unsolved
from environments.tasks.model import Keep, Step, Task

if TYPE_CHECKING:
    from environments.inference.session import Session
    from environments.rollout import Rollout
    from environments.sandboxes.base import Sandbox


class NoMachine(SandboxError):
    """What the backend cannot do for a task. Another try would fail alike."""

    lasting = True


class FaultyMachine(NoMachine):
    """What no backend could do, as the task is at fault."""


class _Patience(Breaker):
    """Broken tasks are what a validation looks for: however many there are, the others are tried."""

    def record(self, attempt: Attempt) -> None:
        return None


class TaskValidation(HarborTasks):
    """Rolls out both policies; ``reports`` is what came of it."""

    name = "task-validation"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seen = Seen()

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

    async def setup(self) -> None:
        """Load the tasks, and note what is wrong with them."""
        await super().setup()
        self.seen.names = sorted({*self.tasks, *self.seen.faults})
        if self.active_run is not None:
            self.active_run.breaker = _Patience()

    def refuse_broken(self, broken: Mapping[str, str]) -> None:
        """Note them; the others are run."""
        self.seen.faults |= {name: [text] for name, text in broken.items()}

    def refuse_misfits(self, tasks: list[Task]) -> None:
        """Note them; the others are run."""
        for task in tasks:
            if found := faults(task) + unsolved(task):
                self.seen.faults[task.name] = found
            elif found := self.misfits(task):
                self.seen.misfits[task.name] = found

    def items(self) -> list[dict[str, Any]]:
        """Each task that can be run, once for each policy."""
        left_out = {*self.seen.faults, *self.seen.misfits}
        items = [item for item in super().items() if item["task_name"] not in left_out]
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

        return NopSession() if rollout.item["policy"] == NOP else await super().open_session(rollout)

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """One attempt. What the backend turns out to be unable to do concerns this task alone."""
        try:
            return await super().collect_trajectory(item)
        except (TaskFault, ImageBuildFailed) as error:
            raise FaultyMachine(f"{item['task_name']}: {error}") from error
        except NotSupported as error:
            raise NoMachine(f"{item['task_name']}: {error}") from error

    async def grade(self, task: Task, step: Step, sandbox: Sandbox, *, last: bool) -> Verdict:
        """As any task's, and where it was solved, again with ever less of the agent alive."""
        verdict = await super().grade(task, step, sandbox, last=last)
        keep, found = step.verifier.keep or "listeners", verdict
        needed: Keep | None = None
        while last and (found.reward or 0.0) >= 1.0:
            needed = keep
            if keep == "none" or (keep == "listeners" and not found.kept):
                needed = "none"
                break
            keep = "listeners" if keep == "all" else "none"
            less = replace(step, verifier=replace(step.verifier, keep=keep))
            try:
                found = await super().grade(task, less, sandbox, last=True)
            except (VerifierError, SandboxBroken):
                break
        if needed is not None:
            verdict.evidence[NEEDS] = needed
        return verdict

    async def get_next_item(self) -> Item | None:
        """There is nothing to train on."""
        return None

    async def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Roll out all there is."""
        items = self.items()
        return await self.evaluate_items(items) if items else {"tasks": float(len(self.seen.names))}

    def reports(self, attempts: Sequence[Attempt]) -> list[TaskReport]:
        """One report for each task, from the attempts of a run."""
        found: dict[str, dict[str, list[Attempt]]] = {}
        for attempt in attempts:
            name, _, policy = attempt.item_id.rpartition("/")
            found.setdefault(name, {}).setdefault(policy, []).append(attempt)
        planned = self.config.attempts
        return [report_of(name, self.seen, found.get(name, {}), planned) for name in self.seen.names]
