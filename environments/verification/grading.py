"""From a sandbox that an agent has left to a verdict.

A grading that gives no verdict (the tests wrote no reward, ran out of time, could not start) is done once
more with nothing of the agent alive. If that does not give the agent its reward either, the question is
whose fault it is, and only sandboxes that the agent has never reached may answer it. Where the tests reach
no verdict in one that nobody has touched, or at the first try on the task's own solution, the task is
broken and ``VerifierError`` says so. Otherwise the agent has failed: else it could turn each failure into
an error that nobody counts. Such a zero is marked ``contested``, since tests that break on good work alone
cannot be told from it where there is no solution.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import environments
from environments.errors import VerifierError
from environments.records import Trust, Verdict
from environments.sandboxes.base import Sandbox
from environments.tasks.model import DEFAULT_TIMEOUT, Keep, Step, Task
from environments.tasks.variables import resolve_variables
from environments.verification.room import Graded, Job, Room, WeakRoom
from environments.verification.separate import carry
from environments.verification.stopping import stop

FreshSandbox = Callable[[], AbstractAsyncContextManager[Sandbox]]
"""Makes the machine of a separate verifier."""

Untouched = Callable[[], Awaitable[bool]]
"""Whether the tests reach a verdict where no agent has been."""

Solved = Callable[[], Awaitable[bool | None]]
"""Whether the tests reach a verdict at the first try on the task's own solution, in a sandbox where no agent
has been; None where that is not known."""


async def verify(
    task: Task,
    sandbox: Sandbox,
    *,
    step: Step | None = None,
    last: bool = True,
    room: Room | None = None,
    fresh: FreshSandbox | None = None,
    untouched: Untouched | None = None,
    solved: Solved | None = None,
    timeout: float | None = None,
    directory: str | None = None,
) -> Verdict:
    """Grade what is in a sandbox with a task's tests.

    ``step`` is needed for a task of several steps, ``last`` tells whether an agent goes on working here
    afterwards. ``fresh`` is needed where the task asks for a separate verifier. ``untouched`` and
    ``solved`` are asked where the tests reach no verdict; without them that is the task's fault.
    ``timeout`` (seconds) is in place of the task's own, ``directory`` is where the tests start.

    Raises ``VerifierError`` where no verdict can be reached through no fault of the agent, with the
    evidence attached, and ``SandboxError`` where the sandbox fails.
    """
    step = step or _only_step(task)
    room = room or WeakRoom()
    keep: Keep = step.verifier.keep or "listeners"
    job = Job(
        tests=step.tests,
        keep=keep,
        timeout=timeout or step.verifier.timeout or DEFAULT_TIMEOUT,
        environment=resolve_variables(step.verifier.env, f"{task.name}: verifier.env"),
        user=step.verifier.user,
        directory=directory,
        last=last,
    )
    started = time.time()
    graded = await _grade(task, step, job, room, sandbox, fresh)
    evidence = [_evidence(graded, job)]
    survivors: list[str] = []
    if graded.score is None:
        survivors = graded.stopped.kept
        job = _without_services(job)
        graded = await _grade(task, step, job, room, sandbox, fresh)
        evidence.append(_evidence(graded, job))
    trust = Trust.SEPARATE if step.verifier.mode == "separate" else room.trust
    verdict = _verdict(graded, room, trust, evidence)
    verdict.started_at, verdict.duration = started, time.time() - started
    if len(evidence) == 1:
        return verdict
    if graded.score is None and (untouched is None or not await untouched()):
        raise VerifierError(graded.problem, evidence=verdict)
    if graded.score is None or graded.score.value <= 0 or survivors:
        await _whose_fault(verdict, evidence[0]["problem"], survivors, solved)
    return verdict


async def _whose_fault(verdict: Verdict, problem: str, survivors: list[str], solved: Solved | None) -> None:
    """Decide on tests that reached no verdict at the first try, and at the second none or none to trust.

    What ran beside them at the first (``survivors``) may have kept them from a verdict, read them, and
    prepared the second: a reward is then no proof of work. And a zero is none of idleness, where tests that
    broke on good work had spoilt it.
    """
    reaches = None if solved is None else await solved()
    if reaches is False:
        verdict.reward, verdict.passed = None, None
        verdict.error = f"{problem}; so it is with the task's own solution"
        raise VerifierError(verdict.error, evidence=verdict)
    if verdict.reward is None:
        second = "twice; in a sandbox that no agent has touched the tests do reach a verdict"
    elif survivors:
        second = f"while {', '.join(survivors[:5])} ran beside the tests; then {verdict.reward:g}"
    else:
        second = f"then {verdict.reward:g}"
    known = "" if reaches is None else ", and on the task's own solution"
    verdict.explanation = f"{problem}, {second}{known}"
    verdict.reward, verdict.passed, verdict.contested = 0.0, False, True


async def _grade(
    task: Task, step: Step, job: Job, room: Room, sandbox: Sandbox, fresh: FreshSandbox | None
) -> Graded:
    if step.verifier.mode == "shared":
        return await room.grade(job, sandbox)
    if fresh is None:
        raise VerifierError(f"{task.name} asks for a separate verifier, and no fresh sandbox was offered")
    stopped = await stop(sandbox, "none" if job.last else job.keep)
    async with fresh() as machine:
        try:
            await carry(step.artifacts, sandbox, machine)
        except VerifierError as error:
            return Graded(problem=str(error))
        graded = await room.grade(job, machine)
    graded.stopped = stopped
    return graded


def _only_step(task: Task) -> Step:
    if len(task.steps) > 1:
        raise ValueError(f"{task.name} has {len(task.steps)} steps; say which one is graded")
    return task.steps[0]


def _without_services(job: Job) -> Job:
    return replace(job, keep="none")


def _evidence(graded: Graded, job: Job) -> dict[str, Any]:
    return {
        "keep": job.keep,
        "exit_code": graded.exit_code,
        "duration": round(graded.duration, 3),
        "timed_out": graded.timed_out,
        "problem": graded.problem,
        "note": graded.stopped.note,
        "output": graded.output,
    }


def _verdict(graded: Graded, room: Room, trust: Trust, evidence: list[dict[str, Any]]) -> Verdict:
    score = graded.score
    tries = {} if len(evidence) == 1 else {"earlier": evidence[:-1]}
    source = {} if score is None else {"reward_key": score.key, "reward_file": score.file}
    reward = None if score is None else 0.0 if graded.tampered else score.value
    explanation = "" if score is None else f"{score.key} of {score.file}"
    if graded.tampered and score is not None:
        explanation = f"{score.file} says {score.value:g}, but pytest did not pass"
    return Verdict(
        reward=reward,
        metrics={} if score is None else dict(score.metrics),
        explanation=explanation,
        passed=None if reward is None else reward >= 1.0,
        verifier=room.name,
        verifier_version=environments.__version__,
        evidence={**evidence[-1], **source, **tries},
        trust=trust,
        tampered=graded.tampered,
        killed=graded.stopped.killed,
        kept=graded.stopped.kept,
        overridden=graded.overridden,
        bundle_version=graded.bundle,
        error=graded.problem or None,
    )
