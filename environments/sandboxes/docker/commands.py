"""The commands of one container: running them, ending them, and telling why one could not run."""

from __future__ import annotations

import asyncio
import copy
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from environments.errors import SandboxBroken, SandboxError
from environments.sandboxes.arguments import LARGEST_READ
from environments.sandboxes.base import ExecResult
from environments.sandboxes.docker.containers import Container
from environments.sandboxes.docker.engine import Engine, EngineError
from environments.sandboxes.docker.execution import Execution, NotStarted, Request, start
from environments.sandboxes.docker.files import Outcome
from environments.sandboxes.docker.guard import Guard
from environments.sandboxes.docker.output import LARGEST_MESSAGE, Output, WholeOutput
from environments.sandboxes.docker.process import DockerProcess
from environments.sandboxes.docker.scripts import shell_command, with_counted_input
from environments.sandboxes.stops import Stops

_DRAIN_PATIENCE = 5.0
_DEATH_NEWS = 0.1
_TIMED_OUT = 124
_NUMBERED = 'echo "$$" >&2\n'
_KILL_TRIES = 3
_GONE_PAUSES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 2.0, 2.0, 3.0)
"""Seconds. What is not gone after them is taken for the agent's doing, so a busy host gets its time."""
_KILLED = 128 + signal.SIGKILL
_START_TRIES = 2
_START_PATIENCE = 120.0
_CANCEL_PATIENCE = 10.0
"""Seconds that a cancelled command may take to be dead before its end is left to a task."""
_NAP = 10.0
_MOST_STOPS = 3


class _Foreground:
    """A command that somebody waits for."""

    def __init__(self) -> None:
        self.mark = new_mark()
        self.alone = True
        """Whether no other one ran meanwhile."""


class Commands:
    """Runs commands in one container. Every command carries a mark and can be killed as a tree."""

    def __init__(self, engine: Engine, container: Container, guard: Guard, user: str) -> None:
        """``user``: as whom commands run that name none; empty for root."""
        self._engine = engine
        self._container = container
        self._guard = guard
        self._foreground: list[_Foreground] = []
        self._processes: list[DockerProcess] = []
        self._started = 0
        self._user = user
        self._tasks: set[asyncio.Task[None]] = set()

    def as_user(self, user: str) -> Commands:
        """The same, for commands of another user."""
        other = copy.copy(self)
        other._user = user
        return other

    async def run(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        user: str | None = None,
        limit: int = LARGEST_MESSAGE,
    ) -> ExecResult:
        """Run a command of ours (one that prints its process number first) to its end."""
        output = Output(limit)
        began = time.monotonic()
        try:
            request = Request(self._fit(argv, stdin), environment or {}, user, stdin is not None)
            code, timed_out = await self._attend(request, output, _feeder(stdin), timeout=timeout)
        except NotStarted as error:
            code, timed_out = error.exit_code or 126, False
            output.err.add(str(error).encode() + b"\n")
        return ExecResult(
            exit_code=code,
            stdout=output.out.value(),
            stderr=output.err.value(),
            duration=time.monotonic() - began,
            timed_out=timed_out,
            killed_by=_signal_of(code),
            stdout_bytes=output.out.total,
            stderr_bytes=output.err.total,
        )

    async def program(
        self, text: str, *arguments: str, stdin: bytes | None = None, most: int = LARGEST_READ
    ) -> Outcome:
        """Run a shell program of ours; all of its output comes back. ``OSError`` for more than ``most``."""
        output = WholeOutput(next(iter(arguments), ""), most)
        argv = self._fit(shell_command(_NUMBERED + text, *arguments), stdin)
        code = await self.attend_program(argv, output, _feeder(stdin))
        return Outcome(code, bytes(output.data), output.err.value())

    async def attend_program(
        self,
        argv: Sequence[str],
        output: Any,
        feed: Callable[[Execution], Awaitable[None]] | None,
    ) -> int:
        """Run a program of ours whose input and output the caller handles; its exit code."""
        request = Request(argv, stdin=feed is not None)
        try:
            code, _ = await self._attend(request, output, feed, ours=True)
        except NotStarted as error:
            output.err.add(str(error).encode())
            return error.exit_code or 126
        return code

    async def spawn(
        self, argv: Sequence[str], text: str, *, environment: Mapping[str, str], pty: bool
    ) -> DockerProcess:
        """Start a background process. Raises ``SandboxError`` where none can be started."""
        mark = new_mark()
        request = Request(argv, environment, stdin=True, tty=pty, mark=mark)
        try:
            execution = await self._start(request, mark)
        except NotStarted as error:
            raise OSError(f"cannot start a process: {error}") from error
        self._started += 1

        async def kill() -> None:
            await self._kill(execution, mark, alone=not self._foreground)

        process = DockerProcess(self._started, text, mark, execution, kill)
        self._processes.append(process)
        return process

    async def kill_all(self) -> None:
        """Kill every process of the agent, and let the engine confirm it."""
        for _ in range(_KILL_TRIES):
            killed = await self._guard.kill_everything()
            await self._guard.close()  # the program ends with its input
            if killed and await self._gone():
                await self._guard.get_ready()  # while there is room: later the agent may hold all processes
                break
        else:
            raise await self._cannot_kill()
        for process in self._running_processes():
            await process.wait(_DRAIN_PATIENCE)

    async def _gone(self) -> bool:
        for pause in _GONE_PAUSES:
            await asyncio.sleep(pause)
            if await self._container.only_init_runs():
                return True
        return False

    async def close(self) -> None:
        """Forget everything; the container is gone."""
        await self._guard.close()
        for process in self._processes:
            await process.release()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def can_end_input(self) -> bool:
        """Whether a command's input can be closed: TLS connections end in both directions at once."""
        return self._engine.address.tls is None

    def _fit(self, argv: Sequence[str], stdin: bytes | None) -> Sequence[str]:
        return argv if stdin is None or self.can_end_input else with_counted_input(argv, len(stdin))

    # -- one command ----------------------------------------------------------------------------

    async def _attend(
        self,
        request: Request,
        output: Any,
        feed: Callable[[Execution], Awaitable[None]] | None,
        *,
        timeout: float | None = None,
        ours: bool = False,
    ) -> tuple[int, bool]:
        """Exit code of a command and whether it ran out of time. It is dead when this is left.

        ``ours``: a program that is to end by itself, and is told to go on where the agent stops it.
        """
        job = self._enter()
        try:
            execution = await self._start(replace(request, mark=job.mark), job.mark)
            try:
                return await self._follow(execution, job, output, feed, timeout, ours)
            except BaseException:  # cancelled, or the caller's stream failed: nothing of it stays alive
                if not self._container.released:  # else nothing can
                    await self._in_any_case(self._kill(execution, job.mark, alone=job.alone))
                raise
            finally:
                if execution.told_code is None:
                    execution.close()
                else:
                    self._keep(execution.discard())
        finally:
            self._foreground.remove(job)

    async def _follow(
        self,
        execution: Execution,
        job: _Foreground,
        output: Any,
        feed: Callable[[Execution], Awaitable[None]] | None,
        timeout: float | None,
        ours: bool,
    ) -> tuple[int, bool]:
        reading = asyncio.ensure_future(output.read(execution))
        beside = [asyncio.ensure_future(feed(execution))] if feed is not None else []
        if ours:
            beside.append(asyncio.ensure_future(self._keep_awake(execution)))
        timed_out = False
        try:
            await _first_failure(reading, beside, timeout)
            if not reading.done():
                timed_out = True
                await self._kill(execution, job.mark, alone=job.alone)
                await asyncio.wait({reading}, timeout=_DRAIN_PATIENCE)
            else:
                reading.result()
        finally:
            tasks = (reading, *beside)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if timed_out:
            return _TIMED_OUT, True
        return await self._result(execution), False

    async def _result(self, execution: Execution) -> int:
        if execution.told_code is not None:
            return execution.told_code
        try:
            code = await execution.result()
        except EngineError as error:
            raise await self._container.why_dead(during_command=True, cause=error) from error
        if code is None or code in (_KILLED, 255) or code < 0:
            await self._container.check_running(during_command=True)
            await asyncio.sleep(_DEATH_NEWS)  # the engine learns of a container's end after its commands'
            await self._container.check_running(during_command=True)
        return _KILLED if code is None or code < 0 else code

    async def _keep_awake(self, execution: Execution) -> None:
        """Raise ``SandboxBroken`` where a program of ours is found stopped again and again."""
        stops = Stops(_NAP, _NAP, _MOST_STOPS)
        while True:
            await asyncio.sleep(stops.nap)
            stopped = await self._guard.wake(execution.process)
            if stopped:  # else the container is well
                await self._container.check_running(during_command=True)
            stops.looked(stopped)

    async def _start(self, request: Request, mark: str) -> Execution:
        """Start a command; when cancelled on the way, whatever did start is killed."""
        request = replace(request, user=request.user or self._user)
        for attempt in range(_START_TRIES):
            try:
                return await self._start_once(request, mark)
            except NotStarted as error:
                await self._container.check_running(during_command=bool(self._running_processes()))
                if "/bin/sh" in str(error) and ("no such file" in str(error) or "not found" in str(error)):
                    raise SandboxBroken("the sandbox has no /bin/sh any more") from error
                if error.by_the_engine:
                    raise SandboxError(f"the engine has no room for a process: {error}") from error
                if attempt + 1 == _START_TRIES:  # before, it may have been killed with whatever stopped it
                    raise
            except EngineError as error:
                busy = bool(self._running_processes())
                raise await self._container.why_dead(during_command=busy, cause=error) from error
        raise AssertionError("unreachable")

    async def _start_once(self, request: Request, mark: str) -> Execution:
        starting = asyncio.ensure_future(start(self._engine, self._container.id, request))
        try:
            await asyncio.wait({starting}, timeout=_START_PATIENCE)
        except asyncio.CancelledError:
            await self._in_any_case(self._abandon(starting, mark))
            raise
        if not starting.done():
            self._keep(_quietly(self._abandon(starting, mark)))
            if self._running_processes():
                raise SandboxBroken("the sandbox starts nothing any more; the agent holds it up")
            raise SandboxError(f"the engine started no command within {_START_PATIENCE:.0f} s")
        return starting.result()

    async def _abandon(self, starting: asyncio.Future[Execution], mark: str) -> None:
        try:
            execution = await starting
        except SandboxError:  # it did not start, or its container is gone
            return
        await self._kill(execution, mark, alone=False)
        execution.close()

    async def _in_any_case(self, work: Any) -> None:
        """Do something although this task is being cancelled; a second cancellation leaves it to a task."""
        # Not awaited itself: ``close`` may cancel it, which is no cancellation of whoever waits here.
        await asyncio.wait({self._keep(_quietly(work))}, timeout=_CANCEL_PATIENCE)

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _kill(self, execution: Execution, mark: str, *, alone: bool) -> None:
        others = [job.mark for job in self._foreground] + [p.mark for p in self._running_processes()]
        age = asyncio.get_running_loop().time() - execution.loop_time
        others = [other for other in others if other != mark]
        if not await self._guard.kill_tree(execution.process, age, mark, alone=alone, others=others):
            raise await self._cannot_kill()

    async def _cannot_kill(self) -> SandboxError:
        await self._container.check_running(during_command=True)
        return SandboxBroken("the sandbox's processes cannot be killed any more; the agent has broken it")

    def _enter(self) -> _Foreground:
        job = _Foreground()
        for other in self._foreground:
            other.alone = job.alone = False
        self._foreground.append(job)
        return job

    def _running_processes(self) -> list[DockerProcess]:
        return [process for process in self._processes if process.exit_code is None]


def new_mark() -> str:
    """Identity of a command."""
    return f"{secrets.token_hex(8)}."


def _feeder(stdin: bytes | None) -> Callable[[Execution], Awaitable[None]] | None:
    if stdin is None:
        return None
    data = stdin
    return lambda execution: execution.feed(data)


async def _first_failure(
    reading: asyncio.Future[Any], beside: Sequence[asyncio.Future[Any]], timeout: float | None
) -> None:
    """Wait for the end of the output, or a failure of what runs beside it, at most ``timeout`` seconds."""
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    waiting = {reading, *beside}
    while reading in waiting:
        left = None if deadline is None else max(0.0, deadline - loop.time())
        done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return
        for task in done - {reading}:
            task.result()


async def _quietly(work: Awaitable[Any]) -> None:
    try:
        await work
    except SandboxError:  # the sandbox is gone or broken: its next use says so
        return


def _signal_of(code: int) -> int | None:
    """The engine reports 128 + n both for signal n and for an exit with that code."""
    number = code - 128
    return number if number in set(map(int, signal.Signals)) else None
