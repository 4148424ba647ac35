"""One instance as a machine for ``RemoteSandbox``."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from environments.errors import SandboxBroken, SandboxError, SandboxReleased
from environments.sandboxes.egress.proxy import FilteringProxy
from environments.sandboxes.local.inside.directories import remove_tree
from environments.sandboxes.remote_shell.attention import Attention
from environments.sandboxes.remote_shell.machine import Channel, Exit, Machine, Receiver
from environments.sandboxes.remote_shell.output import WholeOutput
from environments.sandboxes.remote_shell.program import framed, quote
from environments.sandboxes.singularity import holdings, process_table
from environments.sandboxes.singularity.deadlines import Deadlines
from environments.sandboxes.singularity.engine import Engine, Instance
from environments.sandboxes.singularity.holdings import Note
from environments.sandboxes.singularity.options import Features, exec_arguments
from environments.sandboxes.singularity.program_process import ACKNOWLEDGEMENT, ProgramProcess

_TRIES = 3
_PATIENCE = 15.0
_START_TIMEOUT = 30.0
"""Seconds until a child that does not begin its program, although it is not stopped, is given up."""

_END_PATIENCE = 5.0
"""Seconds in which an instance ends that nothing hinders."""

_AFTERMATH = 5.0
"""Seconds in which an instance may follow a command that was killed: memory ran out for both."""

_SHELL = ["/bin/sh", "-c", 'read -r n; eval "$(head -c "$n")"', "sh"]


class InstanceMachine(Machine):
    """Runs each program by one child process of the engine.

    Joining an instance takes the engine about 0.1 s, so one child waits in it for the next program.
    """

    def __init__(
        self, engine: Engine, features: Features, instance: Instance, family: str, directory: Path
    ) -> None:
        """Take charge of a running instance. ``SandboxError`` where it ended meanwhile."""
        self._engine = engine
        self._features = features
        self._instance = instance
        self._family = family
        self._directory = directory
        self._namespace = process_table.process_namespace(instance.pid)
        self._master = process_table.parent_of(instance.pid)
        try:
            self._pidfd = os.pidfd_open(instance.pid)
        except ProcessLookupError:
            raise SandboxError(f"instance {instance.name} ended at once") from None
        self._deadline = math.inf
        self._deadlines: Deadlines | None = None
        self._spare: ProgramProcess | None = None
        self._children: set[ProgramProcess] = set()
        self._watching: set[asyncio.Future[None]] = set()
        self._broken = False
        self._killed_at = -math.inf
        self._released = False
        self.scratch = ""
        self.on_released: Callable[[], None] = _nothing
        self.proxy: FilteringProxy | None = None
        """The only way out of it, where it has one."""

    @property
    def running(self) -> bool:
        """Whether its init still runs."""
        return not self._released and _runs(self._pidfd)

    async def end_after(self, seconds: float, deadlines: Deadlines) -> None:
        """Have it ended after so long, whatever becomes of us."""
        await deadlines.set(self._pidfd, self._instance.pid, seconds, self._family)
        self._deadline = time.monotonic() + seconds
        self._deadlines = deadlines

    async def open(self, program: bytes, receive: Receiver, *, pty: bool = False) -> Channel:
        """Have ``sh`` run ``program`` in the instance."""
        if pty:
            return await self._open_in_terminal(program, receive)
        source = framed(b"{\nprintf " + ACKNOWLEDGEMENT + b"\n" + program + b"\n}")
        complaint = ""
        for _ in range(_TRIES):  # the agent may have killed the child that waited
            self._check_running()
            child = self._take_child()
            try:
                async with asyncio.timeout(_START_TIMEOUT):
                    begun = await Attention(self, receive).until(child, child.begin(source, receive))
            except TimeoutError:
                complaint = f"no program begins within {_START_TIMEOUT:.0f} s"
                joined = process_table.runs_another_program(child.pid, self._namespace)
                child.kill()
                if not joined:  # the engine was too slow, on a busy host, say
                    self._check_running()
                    raise SandboxError(f"{complaint} in {self._instance.name}") from None
                break
            except BaseException:  # cancelled, too: nobody else has the process
                child.kill()
                raise
            if begun:
                self._prepare_child()
                return child
            complaint = child.complaint
            child.close()
        self._check_running()
        reason = f"nothing runs any more in {self._instance.name}: {complaint[-500:]}"
        if await self._engine.instances(self._instance.name):  # the engine is well, so the agent did it
            raise SandboxBroken(reason)
        raise SandboxError(reason)

    async def kill(self, mark: str) -> None:
        """Kill every process whose mark begins with ``mark``."""
        self._check_running()
        if mark == self._family:
            init = self._instance.pid
            left = await asyncio.to_thread(process_table.kill_namespace, self._namespace, init)
            left += await asyncio.to_thread(process_table.kill_marked, mark, self._namespace)
        else:
            left = await asyncio.to_thread(process_table.kill_marked, mark, self._namespace)
        for child in self._children:  # a command that stopped its group has stopped what it was started by
            if child.running:
                process_table.wake(child.pid)
        if left:
            raise SandboxError(f"{left} processes of {self._instance.name} cannot be killed")

    def wake(self, channel: Channel) -> bool:
        """Have the program of ``channel`` and the engine's process above go on; whether one was stopped."""
        if not isinstance(channel, ProgramProcess) or not channel.running:
            return False
        return process_table.wake_tree(channel.pid)

    async def alive(self) -> bool:
        """Whether a program can run in it."""
        if not self.running:
            return False
        output = WholeOutput()
        try:
            async with asyncio.timeout(_PATIENCE):
                channel = await self.open(b"{\necho yes\n}", output.receive)
                try:
                    return (await channel.wait()).code == 0 and output.stdout == b"yes\n"
                finally:
                    channel.close()
        except (SandboxError, TimeoutError):
            return False

    async def keep(self, seconds: float) -> float:
        """Set another deadline, which is kept without us."""
        self._check_running()
        if self._deadlines is None:
            raise SandboxError(f"instance {self._instance.name} belongs to another run")
        await self.end_after(seconds, self._deadlines)
        note = await asyncio.to_thread(Note.read, self._directory)
        if note is None:
            raise SandboxError(f"the files of instance {self._instance.name} are gone")
        note.kept, note.deadline = True, time.time() + seconds
        await asyncio.to_thread(note.write, self._directory)
        return note.deadline

    async def detach(self) -> None:
        """Let go of it without ending it."""
        if self._released:
            return
        self._released = True
        if self.proxy is not None:
            await self.proxy.close()
        if self._spare is not None:
            self._spare.kill()
        for child in list(self._children):
            child.discard()
        os.close(self._pidfd)
        self.on_released()

    async def release(self) -> None:
        """Kill the instance, which takes all its processes with it, and remove its files."""
        if self._released:
            return
        self._released = True
        try:
            if self.proxy is not None:
                await self.proxy.close()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            ended = await self._end_what_serves_it()
            for child in list(self._children):
                child.discard()
            if self._watching:
                await asyncio.wait(self._watching, timeout=_PATIENCE)
            if ended:  # else the files stay for the next start, which tries again
                await asyncio.to_thread(self._remove_files)
        finally:
            os.close(self._pidfd)
            self.on_released()

    def _take_child(self) -> ProgramProcess:
        spare, self._spare = self._spare, None
        if spare is not None and spare.running:
            return spare
        return self._start(_SHELL)

    def _prepare_child(self) -> None:
        if self._spare is None and self.running:
            with contextlib.suppress(SandboxError):  # then the next program has to say so
                self._spare = self._start(_SHELL)

    def _start(self, command: list[str], *, pty: bool = False) -> ProgramProcess:
        arguments = exec_arguments(self._features, self._instance.name, command)
        try:
            child = ProgramProcess([self._engine.path, *arguments], self._engine.environment(), pty=pty)
        except OSError as error:
            raise SandboxError(f"{self._engine.path} cannot be run: {error}") from error
        process_table.set_mark(child.pid, process_table.parents_mark(self._family))
        self._children.add(child)
        self._watching.add(watching := asyncio.ensure_future(child.over()))
        watching.add_done_callback(lambda _: self._forget(child, watching))
        return child

    def _forget(self, child: ProgramProcess, watching: asyncio.Future[None]) -> None:
        self._watching.discard(watching)
        self._children.discard(child)

    async def _open_in_terminal(self, program: bytes, receive: Receiver) -> Channel:
        """A terminal would echo a program and cut its lines, so the program goes by a file."""
        file = f"{self.scratch}/program-{secrets.token_hex(8)}"
        output = WholeOutput()
        saving = f"{{\numask 077\nexec cat >{quote(file)}\n}}".encode()
        channel = await self.open(saving, output.receive)
        attention = Attention(self, output.receive)
        try:
            await attention.until(channel, channel.write(program))
            channel.close_stdin()
            if (await attention.until(channel, channel.wait())).code:
                raise SandboxBroken(f"no terminal can be started: {output.stderr[-500:]!r}")
        finally:
            channel.close()
        child = self._start(["/bin/sh", "-c", 'p=$(cat "$1"); rm -f "$1"; eval "$p"', "sh", file], pty=True)
        child.listen(receive)
        return child

    async def check(self, ended: Exit) -> None:
        """Raise where the program that ended so was taken away together with the instance."""
        if ended.code == 128 + signal.SIGKILL:
            self._killed_at = time.monotonic()
            # Init is the last of its processes to go.
            for _ in range(10):
                if not self.running:
                    self._broken = True
                    break
                await asyncio.sleep(0.01)
        self._check_running()

    def _check_running(self) -> None:
        """Raise where init is gone. A command can end it, by a signal or for want of memory."""
        if self.running:
            return
        if self._released:
            raise SandboxReleased(f"instance {self._instance.name} was released")
        if time.monotonic() >= self._deadline - 0.1:
            raise SandboxError(f"the lifetime of instance {self._instance.name} was over")
        killed = time.monotonic() < self._killed_at + _AFTERMATH
        if self._broken or killed or any(child is not self._spare for child in self._children):
            self._broken = True
            raise SandboxBroken(f"instance {self._instance.name} died while a command ran in it")
        raise SandboxError(f"instance {self._instance.name} is gone")

    async def _end_what_serves_it(self) -> bool:
        """See to it that init and the engine's process above it go: then its mounts are gone, too.

        False where some of it is left.
        """
        for child in self._children:
            if child.running:
                process_table.wake(child.pid)
        name, master = self._instance.name, self._master
        deadline = asyncio.get_running_loop().time() + _END_PATIENCE
        while asyncio.get_running_loop().time() < deadline:
            if not _runs(self._pidfd) and not holdings.is_master(master, name):
                return True
            await asyncio.sleep(0.01)
        return await asyncio.to_thread(holdings.finish, name, master) and not _runs(self._pidfd)

    def _remove_files(self) -> None:
        for path in self._instance.logs:
            Path(path).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # left for the next start
            remove_tree(str(self._directory))


def _runs(pidfd: int) -> bool:
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    return not ended.poll(0)


def _nothing() -> None:
    """No one waits for the release yet."""
