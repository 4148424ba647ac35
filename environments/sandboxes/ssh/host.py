"""The remote machine: our directory on it, our run's lease, and programs run for ourselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import re
import secrets
from dataclasses import dataclass

from environments.errors import SandboxError
from environments.sandboxes.remote_shell.attention import until_silent
from environments.sandboxes.remote_shell.machine import Channel, Exit, Receiver
from environments.sandboxes.remote_shell.output import WholeOutput
from environments.sandboxes.remote_shell.program import BOOTSTRAP, framed, new_family, quote
from environments.sandboxes.ssh import owner, scripts
from environments.sandboxes.ssh.connections import Connections
from environments.sandboxes.ssh.options import SSHOptions

logger = logging.getLogger(__name__)

BASE = "~/.cache/hermes-environments"
_RENEWAL = 20.0
_GRACE = 60
"""Seconds that a run's keeper waits for us to come back after its connection was lost."""

_PATIENCE = 300.0
KILL_PATIENCE = 15.0
"""Seconds in which the machine does something small, such as to look once for a command's processes."""

_TRIES = 20


@dataclass(frozen=True, slots=True)
class Facts:
    """What the machine says of itself."""

    home: str
    user: str
    user_id: int
    path: str
    base: str


class Host:
    """One remote machine, used by one run."""

    def __init__(self, options: SSHOptions, run_id: str, base: str = BASE) -> None:
        self.name = str(options.target)
        self._base = base
        self._connections = Connections(options)
        prefix = re.sub(r"[^A-Za-z0-9_.-]", "-", run_id).lstrip(".-")[:80] or "run"
        self._run_name = f"{prefix}-{secrets.token_hex(4)}"
        self._keeper = new_family()
        self._starting = asyncio.Lock()
        self._facts: Facts | None = None
        self._started = False
        self._program_directory = ""
        self._keeping: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def facts(self) -> Facts:
        """Known after ``start``."""
        if self._facts is None:
            raise SandboxError(f"there is no connection to {self.name} yet")
        return self._facts

    @property
    def run_directory(self) -> str:
        """The directory of this run's sandboxes."""
        return posixpath.join(self.facts.base, self._run_name)

    async def start(self) -> None:
        """Connect, remove what dead runs left, make the run's directory, begin its lease. Idempotent."""
        async with self._starting:
            if self._started:
                return
            await self.remove_dead_runs()
            await self._checked(scripts.make_run(self.run_directory, owner.this_owner(), self._keeper))
            self._program_directory = self.run_directory
            self._started = True
            self._keeping = asyncio.ensure_future(self._keep())

    async def look(self) -> None:
        """Connect and learn what the machine is like, without beginning a run on it."""
        self._facts, _ = _read_survey(self.name, await self._checked(scripts.survey(self._base)))

    async def remove_dead_runs(self) -> None:
        """Connect, and remove what dead runs left."""
        answer = await self._checked(scripts.survey(self._base))
        self._facts, dead = _read_survey(self.name, answer)
        if dead:
            logger.info("removing %d dead runs from %s", len(dead), self.name)
            base = self._facts.base
            if await self.clear(scripts.remove_runs([posixpath.join(base, name) for name in dead])):
                logger.warning("some processes of dead runs on %s cannot be killed", self.name)

    async def sandboxes(self) -> list[str]:
        """Lines that ``scripts.list_sandboxes`` prints."""
        await self.look()
        answer = await self._checked(scripts.list_sandboxes(self.facts.base))
        return answer.decode("utf-8", "surrogateescape").splitlines()

    async def visit(self, directory: str) -> str:
        """Prepare to use a sandbox of another run; its working directory, empty where that is its home."""
        await self.look()
        self._program_directory = directory
        ended, answer, _ = await self.run(scripts.show_working_directory(directory))
        if ended.code:
            raise SandboxError(f"the sandbox {directory} on {self.name} is gone")
        return answer.decode("utf-8", "surrogateescape")

    async def open(
        self, program: bytes, receive: Receiver, *, pty: bool = False, urgent: bool = False
    ) -> Channel:
        """Have ``sh`` run a program there. With ``pty`` it must be short: it is read from a file."""
        if pty:
            return await self._open_in_terminal(program, receive)
        channel = await self._connections.open(f"exec {BOOTSTRAP}", receive, urgent=urgent)
        try:
            await channel.write(framed(program))
        except BrokenPipeError:  # ended at once; ``wait`` says how
            return channel
        except BaseException:  # cancelled, too: nobody else knows the channel
            channel.close()
            raise
        return channel

    async def run(
        self, program: bytes, *, urgent: bool = False, patience: float = _PATIENCE
    ) -> tuple[Exit, bytes, bytes]:
        """Run a program of ours to its end: how it ended, stdout, stderr.

        It is given up where it prints nothing for ``patience`` seconds.
        """
        output = WholeOutput()
        channel = await self.open(program, output.receive, urgent=urgent)
        try:
            channel.close_stdin()
            ended = await until_silent(channel, output, patience)
        except TimeoutError:
            raise SandboxError(f"{self.name} does not answer") from None
        finally:
            channel.close()
        return ended, output.stdout, output.stderr

    async def clear(self, program: bytes, *, patience: float = _PATIENCE) -> int:
        """Run a program that kills, again for a while where the machine starts no process; its exit code."""
        for _ in range(_TRIES):
            ended, _, _ = await self.run(program, urgent=True, patience=patience)
            # A shell that cannot fork exits with 2 or 254, if it gets so far as to be started at all.
            if ended.code in (0, 1):
                break
            await asyncio.sleep(1.0)
        return ended.code

    async def close(self) -> None:
        """Remove the run's directory and disconnect."""
        if self._closed:
            return
        self._closed = True
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._started:
            # Where the machine is out of reach its keeper, or the next run, does it.
            with contextlib.suppress(SandboxError):
                await self.clear(scripts.remove_runs([self.run_directory]))
        await self._connections.close()

    async def _checked(self, program: bytes) -> bytes:
        ended, answer, message = await self.run(program)
        if ended.code:
            text = message.decode("utf-8", "replace").strip()
            raise SandboxError(f"{self.name} cannot hold sandboxes: {text or f'exit code {ended.code}'}")
        return answer

    async def _open_in_terminal(self, program: bytes, receive: Receiver) -> Channel:
        """A terminal would echo a program and cut its lines, so the program goes by a file."""
        file = posixpath.join(self._program_directory, f"program-{secrets.token_hex(8)}")
        path = quote(file)
        output = WholeOutput()
        channel = await self.open(scripts.save(file), output.receive)
        try:
            async with asyncio.timeout(KILL_PATIENCE):
                await channel.write(program)
                channel.close_stdin()
                ended = await channel.wait()
            if ended.code:
                raise SandboxError(f"{self.name} cannot start a terminal: {output.stderr[-500:]!r}")
        except TimeoutError:
            raise SandboxError(f"{self.name} does not answer") from None
        finally:
            channel.close()
        return await self._connections.open(
            f'exec sh -c \'p=$(cat "$1"); rm -f "$1"; eval "$p"\' sh {path}', receive, pty=True
        )

    async def _keep(self) -> None:
        """Renew the lease for as long as the run lives, over whatever connection there is."""
        while True:
            try:
                await self._keep_by_one_channel()
            except (SandboxError, OSError) as error:
                logger.warning("the lease on %s cannot be renewed: %s", self.name, error)
            await asyncio.sleep(_RENEWAL / 4)

    async def _keep_by_one_channel(self) -> None:
        keeper = scripts.keep_lease(self.run_directory, self._keeper, _GRACE)
        channel = await self.open(keeper, lambda *_: None, urgent=True)
        ending = asyncio.ensure_future(channel.wait())
        try:
            while not ending.done():
                await channel.write(b"alive\n")
                await asyncio.wait({ending}, timeout=_RENEWAL)
            ending.result()
        finally:
            ending.cancel()
            if self._closed:  # then the keeper need not wait for us to come back
                with contextlib.suppress(OSError):
                    await channel.write(b"done\n")
            channel.close()


def _read_survey(name: str, answer: bytes) -> tuple[Facts, list[str]]:
    """Facts of the machine, and names of dead runs on it."""
    lines = answer.decode("utf-8", "surrogateescape").splitlines()
    try:
        home, user, user_id, path, base = lines[:5]
        facts = Facts(home, user, int(user_id), path, base)
        runs = [line.split(" ", 2) for line in lines[5:]]
        dead = [run for who, age, run in runs if owner.is_dead(who, float(age))]
    except ValueError:
        raise SandboxError(
            f"the login shell of {name} prints something of its own, or is no shell: {answer[:200]!r}"
        ) from None
    return facts, dead
