"""What all environments over task directories share: items, machines, steps, grading, oracle.

A task of several steps is worked on in one sandbox. Each step has a conversation of its own and is graded
before the next begins; the conversations stand one after the other in the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from environments.base_env import is_overridden
from environments.cli_output import plural
from environments.config import BaseEnvConfig
from environments.errors import (
    AccessDenied,
    ConfigError,
    MissingExtra,
    NotSupported,
    RunAborted,
    SandboxBroken,
    SandboxError,
    UnknownName,
    VerifierError,
)
from environments.harbor_task_env.config import HarborTaskEnvConfig
from environments.harbor_task_env.fitting import agent_timeout, misfits, spec_of, user_of, verifier_timeout
from environments.harbor_task_env.preparing import RUN_SOLUTION
from environments.harbor_task_env.refusals import WITHOUT_ENGINE, cure, listed
from environments.harbor_task_env.steps import SteppedResult, check_evidence, combined, falls_short
from environments.harbor_task_env.trials import Trials
from environments.harbor_task_env.watching import TaskChanged, Watch
from environments.hermes_base_env import HermesAgentBaseEnv
from environments.records import Ending, Item, Message, Verdict
from environments.tasks.lint import faults, unsolved
from environments.tasks.model import Step, Task
from environments.tasks.variables import missing_variables
from environments.terminal_text import label

if TYPE_CHECKING:
    from environments.agent_loop import AgentResult
    from environments.records import ScoredDataItem
    from environments.rollout import Rollout
    from environments.sandboxes.base import Sandbox, SandboxSpec
    from environments.tasks.sources import TaskSet
    from environments.tool_context import ToolContext
    from environments.tools.base import ToolSettings

_ORACLE_PATIENCE = 86_400
"""Seconds that one command of the oracle may take; the agent's own time ends it before."""


class HarborTasks(HermesAgentBaseEnv):
    """Base of environments whose items are tasks in the Harbor format."""

    env_config_cls: ClassVar[type[BaseEnvConfig]] = HarborTaskEnvConfig

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.tasks: dict[str, Task] = {}
        """The chosen tasks by name."""
        self._dataset: list[Item] = []
        self._views: dict[tuple[str, bool], str] = {}
        self._trials = Trials(self)
        self._watch = Watch(())

    async def _start_backend(self) -> None:
        try:
            await super()._start_backend()
        except (SandboxError, MissingExtra, AccessDenied, ConfigError) as error:
            if isinstance(error, UnknownName) or self.config.terminal_backend == "local":
                raise
            raise RunAborted(f"{error}\n{WITHOUT_ENGINE}") from error

    # Items.

    async def setup(self) -> None:
        """Load the tasks and refuse those that cannot be run here, before anything is rolled out."""
        found = await asyncio.to_thread(self.load_tasks)
        names = [*(task.name for task in found.tasks), *found.broken]
        wanted = self._wanted(names)
        chosen = [task for task in found.tasks if task.name in wanted]
        run = self.active_run
        if run is not None:
            run.provenance.dataset, run.provenance.dataset_revision = found.source, found.revision
        self.note_resembling(found.resembling)
        broken = {name: text for name, text in found.broken.items() if name in wanted}
        if self.rescoring is not None and self.rescoring.evaluation:
            misfits = {t.name: "; ".join(why) for t in chosen if (why := faults(t) + self.misfits(t))}
            self.rescoring.unavailable |= broken | misfits
            chosen = [task for task in chosen if task.name not in misfits]
        else:
            self.refuse_broken(broken)
            self.refuse_misfits(chosen)
        self.tasks = {task.name: task for task in chosen}
        self._watch = await asyncio.to_thread(Watch, chosen)
        self._dataset = [*map(item_of, found.tasks), *({"task_name": name} for name in found.broken)]

    def _wanted(self, names: list[str]) -> set[str]:
        """Names of the tasks that the run is about."""
        from environments.tasks.selection import meant, select_names

        take, skip, run = self.config.task_filter, self.config.skip_tasks, self.active_run
        if self.rescoring is None or run is None:
            return set(select_names(names, take, skip))
        if not self.rescoring.evaluation:  # where the order of draws depends on them; some may be gone
            take = take and [glob for glob in take if meant(glob, names)]
            return set(select_names(names, take, skip))
        stored = {attempt.item_id for attempt in run.everything() if self.rescoring.chooses(attempt)}
        chosen = set(names) if take is None and skip is None else set(select_names(names, take, skip))
        return stored & chosen

    def dataset_items(self) -> list[Item] | None:
        """All tasks of the source, whatever the filters leave out."""
        return list(self._dataset)

    def note_resembling(self, resembling: Mapping[str, str]) -> None:
        """Say once what looks like a task and is left out as it is none."""
        if resembling and self.active_run is not None:
            lines = listed([f"{label(name)}: {text}" for name, text in resembling.items()])
            self.active_run.note(f"these are no tasks:\n{lines}")

    def load_tasks(self) -> TaskSet:
        """All tasks of the configured source. Runs in a thread."""
        from environments.tasks.sources import load_tasks

        config = self.config
        if not config.dataset_name:
            raise ConfigError(
                "there are no tasks: --env.dataset_name names a directory of tasks, a .jsonl or .parquet "
                "file, a git URL or a dataset of the Hub"
            )
        cache = Path(config.task_cache).expanduser() if config.task_cache else None
        return load_tasks(
            config.dataset_name,
            split=config.dataset_split,
            revision=config.dataset_revision,
            cache=cache,
            keep_broken=True,
        )

    def refuse_broken(self, broken: Mapping[str, str]) -> None:
        """Raise ``ConfigError`` where a chosen task cannot be read."""
        if broken:
            raise ConfigError(f"tasks that cannot be read ({cure(broken)}):\n{listed(broken.values())}")

    def refuse_misfits(self, tasks: list[Task]) -> None:
        """Raise ``ConfigError`` where a task has a fault, or cannot be run on this backend."""
        found = {task.name: reasons for task in tasks if (reasons := faults(task) + self.misfits(task))}
        if found:
            lines = [f"{label(name)}: {'; '.join(reasons)}" for name, reasons in found.items()]
            raise ConfigError(
                f"{len(found)} of {plural(len(tasks), 'task')} cannot be run here ({cure(found)}):\n"
                f"{listed(lines)}"
            )

    def misfits(self, task: Task) -> list[str]:
        """Why a task cannot be run on this backend."""
        assert self._backend is not None, "the backend is started before setup()"
        if getattr(self._backend, "isolation", None) in ("landlock", "none"):
            raise NotSupported(
                "tasks need directories such as /tests and /app, which the local backend can make only with "
                "namespaces or bubblewrap; use --env.terminal_backend docker"
            )
        found = misfits(task, self.config, self._backend.capabilities)
        runs_solutions = self.policy == "oracle" and not is_overridden(self, "oracle", HarborTasks)
        if not runs_solutions:
            return found
        unset = missing_variables(task.solution_env)
        return [
            *found,
            *unsolved(task),
            *(f"its solution needs the variable {name}, which is not set here" for name in unset),
        ]

    def items(self) -> list[dict[str, Any]]:
        """One item for each task. The digest makes a changed task another item."""
        return [item_of(task) for task in self.tasks.values()]

    def task_of(self, item: Item) -> Task:
        """The task that an item names."""
        return self.tasks[item["task_name"]]

    def format_prompt(self, item: Item) -> str | Message | list[Message]:
        """The instruction of the task's first step."""
        return self.task_of(item).steps[0].instruction

    def sandbox_spec(self, item: Item) -> SandboxSpec:
        """The machine that the task asks for."""
        return spec_of(self.task_of(item), self.config)

    async def agent_view(self, item: Item, spec: SandboxSpec) -> str:
        """All of the task but its tests, its ``[verifier]`` and its metadata; see the base class."""
        from environments.harbor_task_env.task_view import task_view

        task, oracle = self.task_of(item), self.policy_of(item) == "oracle"
        key = (task.name, oracle)
        if key not in self._views:
            self._views[key] = await asyncio.to_thread(task_view, task, with_solution=oracle)
        return self._views[key]

    async def agent_sandbox(self, item: Item, sandbox: Sandbox) -> Sandbox:
        """The machine for the user that the task names for its agent."""
        return await self.machine_of_agent(self.task_of(item), sandbox)

    async def machine_of_agent(self, task: Task, sandbox: Sandbox) -> Sandbox:
        """A task's machine as its agent has it."""
        user = user_of(task, self.config, task.steps[0].agent_user)
        assert self._backend is not None
        if user is None or not self._backend.capabilities.users:
            return sandbox
        return await sandbox.as_user(user)

    def evaluation_concurrency(self) -> int:
        """As ``eval_concurrency`` says; 0 is all at once."""
        return int(self.config.eval_concurrency) or max(1, len(self.tasks) * self.config.attempts)

    # One attempt.

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """Work on a task step by step in a sandbox of its own, and have the result graded."""
        async with self.rollout(item) as rollout:
            result = await self.work(rollout)
            verdict = await rollout.score(result)
        return rollout.scored_item(verdict.reward), []

    async def work(self, rollout: Rollout) -> AgentResult:
        """The agent's part of a rollout."""
        if rollout.finished:
            return await rollout.run()
        task = self.task_of(rollout.item)
        if changed := await asyncio.to_thread(self._watch.problem, task):
            raise TaskChanged(changed)
        sandbox = await rollout.sandbox()
        await self.prepare(task, sandbox)
        results: list[AgentResult] = []
        verdicts: list[Verdict] = []
        for step in task.steps:
            try:
                await self._begin_step(task, step, sandbox, rollout)
            except SandboxBroken:
                if not results:
                    raise
                results[-1].ending = Ending.SANDBOX_BROKEN  # the machine is as the agent has left it
                break
            results.append(await rollout.run(step.instruction, time_limit=agent_timeout(step, self.config)))
            if step is task.steps[-1] or results[-1].ending is Ending.SANDBOX_BROKEN:
                break
            try:
                verdicts.append(await self.grade(task, step, sandbox, last=False))
            except SandboxBroken:  # by what the agent left running, and so its own doing
                results[-1].ending = Ending.SANDBOX_BROKEN
                break
            if falls_short(verdicts[-1], step.min_reward):
                break
        if not task.multi_step:
            return results[0]
        merged = SteppedResult.of(results, verdicts)
        rollout.record_result(merged)
        return merged

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        """Make a sandbox what the task expects before its first step."""
        from environments.harbor_task_env.preparing import prepare

        await prepare(task, sandbox, replay=self.config.task_images == "replay")

    async def _begin_step(self, task: Task, step: Step, sandbox: Sandbox, rollout: Rollout) -> None:
        from environments.harbor_task_env.preparing import place_solution, prepare_step

        try:
            await prepare_step(step, sandbox)
        except OSError as error:
            kind = SandboxError if step is task.steps[0] else SandboxBroken
            raise kind(f"the files of step {step.name} cannot be put into the sandbox: {error}") from error
        if self.policy_of(rollout.item) == "oracle":
            await place_solution(task, step, sandbox)

    def policy_of(self, item: Item) -> str | None:
        """``oracle`` or ``nop`` where no model acts on an item."""
        return self.policy

    def oracle(self, item: Item) -> Any:
        """Run ``solution/solve.sh`` of each step."""

        def script(messages: Any) -> Message:
            if messages[-1].get("role") == "user":
                call = {"name": "terminal", "arguments": {"command": RUN_SOLUTION}}
                return {"role": "assistant", "content": None, "tool_calls": [{"function": call}]}
            return {"role": "assistant", "content": "The solution was run."}

        return script

    def tool_settings(self) -> ToolSettings:
        """The configured limits; the oracle's one command may take as long as the agent."""
        settings = super().tool_settings()
        if self.policy == "oracle":
            settings.terminal_timeout = _ORACLE_PATIENCE
        return settings

    # Grading.

    async def compute_reward(self, item: Item, result: AgentResult, ctx: ToolContext) -> Any:
        """Have the task's tests judge the sandbox; see ``environments.verification``."""
        from environments.attempt_scope import current_attempt

        task = self.task_of(item)
        if ctx.rescoring is not None:
            check_evidence(task, ctx.rescoring)
        earlier = list(result.verdicts) if isinstance(result, SteppedResult) else []
        if isinstance(result, SteppedResult) and len(earlier) == result.begun:
            return combined(task, earlier)
        step = task.steps[len(earlier)]
        try:
            verdict = await self.grade(task, step, await ctx.aio.sandbox(), last=True)
        except VerifierError as error:
            scope = current_attempt.get()
            if scope is not None and isinstance(error.evidence, Verdict):
                scope.record.verdicts.append(error.evidence)
            raise
        return combined(task, [*earlier, verdict]) if task.multi_step else verdict

    async def grade(self, task: Task, step: Step, sandbox: Sandbox, *, last: bool) -> Verdict:
        """The verdict on one step."""
        from environments.verification import verify

        if changed := await asyncio.to_thread(self._watch.problem, task):
            raise VerifierError(changed)
        return await verify(
            task,
            sandbox,
            step=self.judged(task, step),
            last=last,
            fresh=lambda: self.verifier_machine(task, step),
            untouched=lambda: self._trials.untouched(task, step),
            solved=lambda: self._trials.solved(task, step),
            timeout=verifier_timeout(step, self.config),
            directory=sandbox.working_directory,
        )

    def judged(self, task: Task, step: Step) -> Step:
        """A step with the user whom its tests run as."""
        if step.verifier.machine is not None:  # which a Dockerfile of its own makes
            return step
        user = user_of(task, self.config, step.verifier.user)
        return replace(step, verifier=replace(step.verifier, user=user))

    @asynccontextmanager
    async def verifier_machine(self, task: Task, step: Step) -> AsyncIterator[Sandbox]:
        """A fresh machine for a separate verifier: its own, or a copy of the task's."""
        sandbox = await self.create_sandbox(spec_of(task, self.config, step.verifier.machine))
        try:
            if step.verifier.machine is None:
                await self.prepare(task, sandbox)
            yield sandbox
        finally:
            await sandbox.close()

    async def close(self) -> None:
        """See ``BaseEnv.close``; ends what still tries tests out."""
        await self._trials.close()
        await super().close()


def item_of(task: Task) -> dict[str, Any]:
    """The item that is a task."""
    return {
        "task_name": task.name,
        "category": task.category,
        "difficulty": task.difficulty,
        "digest": task.digest,
        "steps": len(task.steps),
    }
