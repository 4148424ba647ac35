"""Making a sandbox what a task expects before its agent begins."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
import time
from pathlib import Path

from environments.errors import SandboxError
from environments.sandboxes.base import ExecResult, Sandbox
from environments.sandboxes.transfer import upload_dir, upload_file
from environments.tasks.dockerfile import Copy, Replay, Run, read_dockerfile
from environments.tasks.model import Healthcheck, Step, Task
from environments.tasks.variables import resolve_variables

SOLUTION = "/solution"
SOLUTION_VARIABLES = f"{SOLUTION}/.variables"
RUN_SOLUTION = f". {SOLUTION_VARIABLES}; bash {SOLUTION}/solve.sh"
"""Command that runs a solution which ``place_solution`` has put there."""
_SETUP_TIMEOUT = 600.0
_DIRECTORIES = "mkdir -p /logs/agent /logs/artifacts && chmod 777 /logs/agent /logs/artifacts; :"
"""The agent need not be root to write there."""


async def prepare(task: Task, sandbox: Sandbox, *, replay: bool) -> None:
    """Carry out the Dockerfile where that is wanted, and wait until the machine is healthy.

    Raises ``SandboxError`` where a machine cannot be made what the task asks for.
    """
    root = "0" if sandbox.info.backend == "docker" else None  # whose image may name another user
    await sandbox.exec(["/bin/sh", "-c", _DIRECTORIES], cwd="/", timeout=60, user=root)
    if replay and task.dockerfile is not None:
        file = await asyncio.to_thread(read_dockerfile, task.dockerfile)
        await _replay(file, task, sandbox)
    if task.machine.healthcheck is not None:
        await wait_until_healthy(sandbox, task.machine.healthcheck, task.name)


async def prepare_step(step: Step, sandbox: Sandbox) -> None:
    """Put a step's own files into the working directory, run its set-up, wait until it is healthy."""
    if step.name and step.workdir_files.is_dir():
        await upload_dir(sandbox, step.workdir_files, sandbox.working_directory)
        if (step.workdir_files / "setup.sh").is_file():
            done = await sandbox.exec(
                ["bash", "setup.sh"], cwd=sandbox.working_directory, timeout=_SETUP_TIMEOUT, merge_output=True
            )
            if done.exit_code != 0:
                raise TaskFault(f"setup.sh of step {step.name} fails: {_failure(done)}")
    if step.healthcheck is not None:
        await wait_until_healthy(sandbox, step.healthcheck, step.name)


async def place_solution(task: Task, step: Step, sandbox: Sandbox) -> None:
    """Put the solution where the oracle runs it, readable by whichever user that is."""
    machine = await sandbox.as_user("0") if sandbox.info.backend == "docker" else sandbox
    await upload_dir(machine, step.solution, SOLUTION)
    values = resolve_variables(task.solution_env, f"{task.name}: solution.env")
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in values.items()]
    await machine.write_bytes(SOLUTION_VARIABLES, "".join(lines).encode())
    await machine.exec(["chmod", "-R", "a+rX", SOLUTION], cwd="/", timeout=60)


async def wait_until_healthy(sandbox: Sandbox, check: Healthcheck, name: str) -> None:
    """Run a healthcheck until it succeeds. Raises ``SandboxError`` after too many failures."""
    started = time.monotonic()
    failures = 0
    while True:
        result = await sandbox.exec(check.command, timeout=check.timeout, merge_output=True)
        if result.exit_code == 0:
            return
        starting = time.monotonic() - started < check.start_period
        failures += not starting
        if failures >= max(1, check.retries):
            raise TaskFault(f"the machine of {name} is not healthy: {_failure(result)}")
        await asyncio.sleep(check.start_interval if starting else check.interval)


class TaskFault(SandboxError):
    """A machine cannot be made as the task asks for, through a fault of the task."""


class BuildFailed(TaskFault):
    """A task's Dockerfile cannot be carried out."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"its Dockerfile fails: {reason}")


async def _replay(file: Replay, task: Task, sandbox: Sandbox) -> None:
    for action in file.actions:
        if isinstance(action, Copy):
            await _copy(action, task, sandbox)
        else:
            await _run(action, task, sandbox)
    if file.working_directory:
        await sandbox.exec(["mkdir", "-p", file.working_directory], cwd="/", timeout=60)


async def _copy(action: Copy, task: Task, sandbox: Sandbox) -> None:
    root = task.environment_directory.resolve()
    for pattern in action.sources:
        sources = sorted(root.glob(pattern.strip("/"))) if pattern.strip("./") else [root]
        if not sources:
            raise BuildFailed(f"COPY {pattern}: there is no such file")
        for source in sources:
            if not source.resolve().is_relative_to(root):
                raise BuildFailed(f"COPY {source.name}: it leads out of the task")
            made = await _copy_one(source, source.is_dir(), action.target, task, sandbox)
            if action.owner is not None and made:
                command = ["chown", "-R", action.owner, "--", *made]
                owned = await sandbox.exec(command, cwd="/", timeout=600, merge_output=True)
                if owned.exit_code != 0:
                    raise BuildFailed(f"COPY --chown={action.owner}: {_last_line(owned.text)}")


async def _copy_one(source: Path, directory: bool, target: str, task: Task, sandbox: Sandbox) -> list[str]:
    """Returns what was made."""
    try:
        if directory:
            await upload_dir(sandbox, source, target.rstrip("/") or "/")
            names = await asyncio.to_thread(lambda: sorted(entry.name for entry in source.iterdir()))
            return [posixpath.join(target, name) for name in names]
        path = posixpath.join(target, source.name) if target.endswith("/") else target
        await upload_file(sandbox, source, path)
        return [path]
    except OSError as error:
        raise BuildFailed(f"COPY {source.name} {target}: {error}") from error


async def _run(action: Run, task: Task, sandbox: Sandbox) -> None:
    await sandbox.exec(["mkdir", "-p", action.directory], cwd="/", timeout=60)
    environment = {name: value for name, value in action.environment.items() if name != "PATH"}
    result = await sandbox.exec(
        ["/bin/sh", "-c", action.command],
        cwd=action.directory,
        env=environment,
        timeout=task.machine.build_timeout,
        user=action.user,
        merge_output=True,
    )
    if result.exit_code != 0:
        raise BuildFailed(f"RUN {action.command[:60]}: {_failure(result)}")


def _failure(result: ExecResult) -> str:
    if result.timed_out:
        return f"it took longer than {result.duration:.0f} s"
    return f"exit code {result.exit_code}, {_last_line(result.text)}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "no output"
