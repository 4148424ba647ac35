"""Where tests run. A room gets a sandbox as the agent left it and gives what the tests made of it.

``WeakRoom`` works on every backend with nothing but the sandbox's own protocol: it runs the tests in the
machine that the agent ruled, with that machine's programs. A stronger room (a view of its own, entered
from outside) has the same two members.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from environments.errors import VerifierError
from environments.records import Trust
from environments.sandboxes.base import ExecResult, Sandbox
from environments.sandboxes.transfer import upload_dir
from environments.tasks.model import Keep
from environments.verification.bundle import Bundle, forget_start_files, place_bundle
from environments.verification.places import TESTS, clear, make_fresh
from environments.verification.reward import Score, read_score
from environments.verification.stopping import Stopped, stop

_OUTPUT_LIMIT = 200_000
_SHOWN = 20_000
"""Characters of the tests' output that are kept as evidence: the end, where the verdict is."""


@dataclass(frozen=True, slots=True)
class Job:
    """One grading. ``timeout`` is in seconds; ``last`` says that no agent will work here again."""

    tests: Path
    keep: Keep = "listeners"
    timeout: float = 600.0
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    directory: str | None = None
    last: bool = True


@dataclass(slots=True)
class Graded:
    """What came of a grading: a score, or the reason why there is none."""

    score: Score | None = None
    problem: str = ""
    stopped: Stopped = field(default_factory=Stopped)
    overridden: list[str] = field(default_factory=list)
    bundle: str | None = None
    tampered: bool = False
    """Whether the score says passed and the tests did not."""
    output: str = ""
    exit_code: int | None = None
    duration: float = 0.0
    timed_out: bool = False


class Room(Protocol):
    """A place to grade in."""

    trust: Trust
    name: str

    async def grade(self, job: Job, sandbox: Sandbox) -> Graded:
        """Run the tests. Raises ``SandboxError`` alone; what the tests do wrong is a ``problem``."""


class WeakRoom:
    """Tests in the agent's own machine, after its processes were stopped."""

    trust = Trust.WEAK
    name = "weak room"

    async def grade(self, job: Job, sandbox: Sandbox) -> Graded:
        """See ``Room.grade``."""
        graded = Graded()
        started = time.monotonic()
        try:
            graded.stopped = await stop(sandbox, job.keep)
            await make_fresh(sandbox, job.user)
            await self._upload(job, sandbox)
            graded.overridden = await forget_start_files(sandbox, job.tests)
            bundle = await place_bundle(sandbox, job.tests)
            graded.bundle = bundle.version if bundle is not None else None
            self._take(graded, await self._run(job, sandbox, bundle), job)
            # What the program under test left behind must not write the reward after the tests did.
            if job.last:
                await sandbox.kill_all()
            else:
                await stop(sandbox, job.keep)
            if not graded.problem:
                graded.score = await read_score(sandbox)
                graded.tampered = _contradicted(graded, bundle)
            if not job.last:
                await clear(sandbox)
        except VerifierError as error:
            graded.problem = str(error)
        graded.duration = time.monotonic() - started
        return graded

    async def _upload(self, job: Job, sandbox: Sandbox) -> None:
        if not (job.tests / "test.sh").is_file():
            raise VerifierError(f"the task has no {TESTS}/test.sh")
        try:
            await upload_dir(sandbox, job.tests, TESTS)
        except OSError as error:
            raise VerifierError(f"the tests cannot be put into the sandbox: {error}") from error

    async def _run(self, job: Job, sandbox: Sandbox, bundle: Bundle | None) -> ExecResult:
        """The script itself, in a process of ours: no shell, start-up file or variable of the agent."""
        environment = dict(job.environment)
        if bundle is not None:
            environment = {**bundle.environment, **environment}
        return await sandbox.exec(
            [*_interpreter(job.tests / "test.sh"), f"{TESTS}/test.sh"],
            cwd=await _directory(job, sandbox),
            env=environment,
            timeout=job.timeout,
            user=job.user,
            merge_output=True,
            output_limit=_OUTPUT_LIMIT,
        )

    def _take(self, graded: Graded, result: ExecResult, job: Job) -> None:
        text = result.stdout.decode("utf-8", "replace") + result.stderr.decode("utf-8", "replace")
        for value in job.environment.values():
            if len(value) >= 8:  # what a verifier is given may be a key
                text = text.replace(value, "***")
        graded.output = text[-_SHOWN:]
        graded.exit_code, graded.timed_out = result.exit_code, result.timed_out
        if result.timed_out:
            graded.problem = f"the tests took longer than {job.timeout:g} s"
        needed = needs(text)
        if needed:
            graded.problem = f"the tests need {', '.join(needed)}"


def _contradicted(graded: Graded, bundle: Bundle | None) -> bool:
    """Whether a score of 1 stands where pytest alone decides, and pytest did not say so."""
    if bundle is None or not bundle.canonical or graded.score is None:
        return False
    return graded.score.value > 0 and not bundle.passed(graded.output)


def needs(output: str) -> list[str]:
    """What our stand-ins said that they cannot replace."""
    mark = "hermes-verifier: needs "
    return list(
        dict.fromkeys(line[len(mark) :].strip() for line in output.splitlines() if line.startswith(mark))
    )


def _interpreter(script: Path) -> list[str]:
    """How to run a script whose mode may have been lost on the way: its own first line, else bash."""
    with script.open("rb") as file:
        first = file.readline(256)
    if not first.startswith(b"#!"):
        return ["bash"]
    words = first[2:].decode("utf-8", "replace").split()
    return words or ["bash"]


async def _directory(job: Job, sandbox: Sandbox) -> str:
    """The task's working directory, or the top where the agent has removed it."""
    path = job.directory or sandbox.working_directory
    with contextlib.suppress(OSError):
        if (await sandbox.stat(path)).kind == "directory":
            return path
    # A link to a directory will do, which the sandbox's own shell knows best.
    found = await sandbox.exec(["/bin/sh", "-c", '[ -d "$1" ]', "sh", path], cwd="/", timeout=60)
    return path if found.exit_code == 0 else "/"
