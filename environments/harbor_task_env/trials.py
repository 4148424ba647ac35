"""Trying a task's tests out where no agent has been: do they reach a verdict at all?

Asked where an attempt's grading came to none. Each question is answered once in a run, in a sandbox of its
own that is closed afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from environments.errors import SandboxBroken, VerifierError
from environments.harbor_task_env.fitting import agent_timeout, spec_of, verifier_timeout
from environments.harbor_task_env.preparing import RUN_SOLUTION, place_solution, prepare_step
from environments.records import Verdict
from environments.tasks.model import Step, Task
from environments.verification import verify

if TYPE_CHECKING:
    from environments.harbor_task_env.tasks_env import HarborTasks
    from environments.sandboxes.base import Sandbox

Answer = bool | None


class Trials:
    """The answers for the tasks of one environment."""

    def __init__(self, environment: HarborTasks) -> None:
        self.environment = environment
        self._answers: dict[tuple[str, str, str], asyncio.Task[Answer]] = {}

    async def untouched(self, task: Task, step: Step) -> bool:
        """Whether a step's tests reach a verdict where nobody has worked."""
        return bool(await self._once("untouched", task, step, self._try_untouched))

    async def solved(self, task: Task, step: Step) -> bool | None:
        """Whether they do at the first try on the task's own solution.

        None where that is not known: there is no solution, or it is not solved by it here.
        """
        number = _number(task, step)
        if not all(earlier.solve_script.is_file() for earlier in task.steps[: number + 1]):
            return None
        return await self._once("solved", task, step, self._try_solved)

    async def close(self) -> None:
        """End what is still tried out."""
        for answer in self._answers.values():
            answer.cancel()
        await asyncio.gather(*self._answers.values(), return_exceptions=True)
        self._answers.clear()

    async def _once(
        self, kind: str, task: Task, step: Step, ask: Callable[[Task, int], Awaitable[Answer]]
    ) -> Answer:
        key = (kind, task.name, step.name)
        known = self._answers.get(key)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            self._answers[key] = asyncio.ensure_future(ask(task, _number(task, step)))
        return await asyncio.shield(self._answers[key])

    async def _try_untouched(self, task: Task, number: int) -> Answer:
        try:
            async with self._machine(task) as sandbox:
                for step in task.steps[: number + 1]:
                    await prepare_step(step, sandbox)
                await self._grade(task, task.steps[number], sandbox)
        except (VerifierError, SandboxBroken):
            return False
        return True

    async def _try_solved(self, task: Task, number: int) -> Answer:
        try:
            async with self._machine(task) as sandbox:
                try:
                    await self._solve(task, number, sandbox)
                except SandboxBroken:  # which tells nothing of the tests
                    return None
                verdict = await self._grade(task, task.steps[number], sandbox)
        except (VerifierError, SandboxBroken):
            return False
        if "earlier" in verdict.evidence:
            return False
        return True if verdict.passed else None

    @asynccontextmanager
    async def _machine(self, task: Task) -> AsyncIterator[Sandbox]:
        sandbox = await self.environment.create_sandbox(spec_of(task, self.environment.config))
        try:
            await self.environment.prepare(task, sandbox)
            yield sandbox
        finally:
            await sandbox.close()

    async def _solve(self, task: Task, number: int, sandbox: Sandbox) -> None:
        machine = await self.environment.machine_of_agent(task, sandbox)
        for step in task.steps[: number + 1]:
            await prepare_step(step, sandbox)
            await place_solution(task, step, sandbox)
            limit = agent_timeout(step, self.environment.config)
            await machine.exec(["bash", "-c", RUN_SOLUTION], timeout=limit, merge_output=True)

    async def _grade(self, task: Task, step: Step, sandbox: Sandbox) -> Verdict:
        return await verify(
            task,
            sandbox,
            step=self.environment.judged(task, step),
            fresh=lambda: self.environment.verifier_machine(task, step),
            timeout=verifier_timeout(step, self.environment.config),
            directory=sandbox.working_directory,
        )


def _number(task: Task, step: Step) -> int:
    """Which step it is; it may be a copy with another verifier."""
    return [known.name for known in task.steps].index(step.name)
