"""The backend ``ssh``: makes sandboxes on a machine reached by SSH."""

from __future__ import annotations

import asyncio
import posixpath
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from environments.errors import ConfigError, NotSupported, SandboxBroken, SandboxError
from environments.records import SandboxInfo
from environments.sandboxes.base import Backend, Capabilities, SandboxEntry, SandboxSpec
from environments.sandboxes.remote_shell import killing
from environments.sandboxes.remote_shell.machine import Channel, Exit, Machine, Receiver
from environments.sandboxes.remote_shell.program import new_family, process_limit, quote
from environments.sandboxes.remote_shell.sandbox import GONE, Place, RemoteSandbox, absolute, gone_message
from environments.sandboxes.ssh import owner, scripts
from environments.sandboxes.ssh.connections import require_asyncssh
from environments.sandboxes.ssh.host import KILL_PATIENCE, Facts, Host
from environments.sandboxes.ssh.options import read_options

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

_DEFAULT_PROCESSES = 512
_RUN_SUFFIX = re.compile(r"-[0-9a-f]{8}\Z")

ISOLATION = "none (remote user)"
_LIMITATIONS = (
    "commands have all rights of the remote user: they reach his files and the processes of other sandboxes",
    "the network is the remote machine's",
    "memory, processors and disk are not limited",
    "paths such as /app or /tests belong to the remote machine and are shared by all sandboxes on it",
)

_NO_NETWORK_POLICY = (
    "the ssh backend cannot keep commands off the network of the remote machine; "
    "accept that with --env.sandbox_network public"
)


class SSHBackend(Backend):
    """Sandboxes as directories and process trees of one remote user. They are apart from one another
    only as far as commands keep to their own directories."""

    name = "ssh"
    capabilities = Capabilities(
        images=False, network_modes=frozenset({"public"}), resources=frozenset({"processes"})
    )

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        require_asyncssh()
        self._config = config
        self._host = Host(read_options(config), run_id)
        self._creating = asyncio.Semaphore(config.sandbox_creation_concurrency)
        self._live: set[RemoteSandbox] = set()
        self._closed = False

    async def check(self) -> None:
        """Connect and log in. ``ConfigError`` with the cure where that cannot work."""
        if self._config.sandbox_network != "public":
            raise ConfigError(_NO_NETWORK_POLICY)
        try:
            await self._host.start()
        except SandboxError as error:
            raise ConfigError(str(error)) from error

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Make one sandbox. ``NotSupported`` where ``spec`` asks for what this backend lacks."""
        _refuse_unsupported(spec)
        await self._host.start()
        async with self._creating:
            if self._closed:
                raise SandboxError("the backend is closed")
            return await self._build(spec)

    async def close(self) -> None:
        """Release all sandboxes that still live, the run's directory, and the connections."""
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        await self._host.close()

    async def survey(self) -> list[SandboxEntry]:
        """Every sandbox of ours that belongs to the remote user."""
        return [_entry(*line.split(" ", 5)) for line in await self._host.sandboxes()]

    async def remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        """End sandboxes of any run; those that are left."""
        await self._host.look()
        left = []
        for entry in entries:
            directory = posixpath.join(self._host.facts.base, entry.id)
            if await self._host.clear(scripts.remove_sandbox(directory, posixpath.basename(directory))):
                left.append(entry)
        return left

    async def reap(self) -> list[SandboxEntry]:
        """Remove dead runs as a whole."""
        before = await self.survey()
        await self._host.remove_dead_runs()
        left = {entry.id for entry in await self.survey()}
        return [entry for entry in before if entry.id not in left]

    async def attach(self, entry: SandboxEntry) -> RemoteSandbox:
        """Join a sandbox that another process made."""
        await self._host.look()
        facts = self._host.facts
        directory = posixpath.join(facts.base, entry.id)
        working_directory = await self._host.visit(directory) or None
        place = _place(facts, directory, SandboxSpec(working_directory=working_directory), _DEFAULT_PROCESSES)
        lifetime = (entry.deadline or time.time()) - time.time()
        machine = SSHMachine(self._host, directory, place.family, lifetime)
        return RemoteSandbox(machine, SandboxInfo(self.name, ISOLATION, "public", entry.id), place)

    async def _build(self, spec: SandboxSpec) -> RemoteSandbox:
        family = new_family()
        directory = posixpath.join(self._host.run_directory, family)
        facts = self._host.facts
        processes = spec.resources.processes or self._config.sandbox_processes or _DEFAULT_PROCESSES
        place = _place(facts, directory, spec, processes)
        machine = SSHMachine(self._host, directory, family, spec.lifetime)
        ended, _, message = await self._host.run(
            scripts.make_sandbox(
                directory, place.working_directory if spec.working_directory else None, spec.lifetime
            )
        )
        if ended.code:
            await machine.release()
            text = message.decode("utf-8", "replace").strip()
            raise SandboxError(f"{self._host.name} makes no sandbox: {text}")
        limitations = list(_LIMITATIONS)
        if facts.user_id == 0:
            limitations.append("the number of processes is not limited, since the remote user is root")
        info = SandboxInfo(
            backend=self.name,
            isolation=ISOLATION,
            network="public",
            id=f"{posixpath.basename(self._host.run_directory)}/{family}",
            resources={"processes": float(processes)} if facts.user_id else {},
            limitations=limitations,
        )
        sandbox = RemoteSandbox(machine, info, place)
        machine.on_released = lambda: self._live.discard(sandbox)
        self._live.add(sandbox)
        return sandbox


class SSHMachine(Machine):
    """A directory and a family of marked processes."""

    def __init__(self, host: Host, directory: str, family: str, lifetime: float) -> None:
        self._host = host
        self._directory = directory
        self._family = family
        self._lifetime = lifetime
        self._deadline = time.monotonic() + lifetime
        self.on_released = _nothing

    async def open(self, program: bytes, receive: Receiver, *, pty: bool = False) -> Channel:
        """Have ``sh`` run ``program`` on the host."""
        return await self._host.open(program, receive, pty=pty)

    async def kill(self, mark: str) -> None:
        """Kill every process whose mark begins with ``mark``."""
        program = killing.kill_for_good(mark, f"{self._directory}/scratch")
        code = await self._host.clear(program, patience=KILL_PATIENCE)
        if code == 1:  # they are another user's now, by sudo or the like
            raise SandboxBroken(f"some processes of the sandbox on {self._host.name} cannot be killed")
        if code:
            raise SandboxError(f"{self._host.name} starts no process any more")

    async def check(self, ended: Exit) -> None:
        """Raise where a program ended because the sandbox's time was over: then its directory goes next."""
        while time.monotonic() >= self._deadline - 1.0:
            if not await self.alive():
                raise SandboxError(f"the sandbox's lifetime of {self._lifetime:.0f} s was over")
            if ended.signal is None or time.monotonic() > self._deadline + 3 * scripts.OVERDUE_SECONDS:
                return
            await asyncio.sleep(0.2)

    async def alive(self) -> bool:
        """Whether the host answers and the sandbox's directory is there."""
        try:
            program = scripts.is_directory(self._directory)
            ended, _, _ = await self._host.run(program, urgent=True, patience=KILL_PATIENCE)
        except (SandboxError, ConfigError):
            return False
        return ended.code == 0

    async def keep(self, seconds: float) -> float:
        """Let it outlive the run: what ends sandboxes at their deadlines stays with it."""
        ended, _, message = await self._host.run(scripts.keep_sandbox(self._directory, seconds))
        if ended.code:
            raise SandboxError(f"the sandbox on {self._host.name} cannot be kept: {message[-200:]!r}")
        return time.time() + seconds

    async def detach(self) -> None:
        """Let go of it without ending it."""
        self.on_released()

    async def release(self) -> None:
        """Kill and remove everything of it; a host out of reach does that itself, by its keeper."""
        try:
            await self._host.clear(scripts.remove_sandbox(self._directory, self._family))
        except (SandboxError, ConfigError):
            return
        finally:
            self.on_released()


def _place(facts: Facts, directory: str, spec: SandboxSpec, processes: int) -> Place:
    family = posixpath.basename(directory)
    home = f"{directory}/home"
    return Place(
        family=family,
        home=home,
        working_directory=absolute(spec.working_directory or "", home, home),
        scratch=f"{directory}/scratch",
        user=facts.user,
        environment=_environment(directory, facts.user, facts.path) | dict(spec.environment),
        prelude=_prelude(directory, family, processes),
        revoked=killing.revoked_directory(f"{directory}/scratch"),
    )


def _entry(who: str, lease_age: str, left: str, age: str, kept: str, path: str) -> SandboxEntry:
    """A line of ``scripts.list_sandboxes``. Times are told as ages: its clock may be another."""
    now = time.time()
    return SandboxEntry(
        backend="ssh",
        id=path,
        run=_RUN_SUFFIX.sub("", posixpath.dirname(path)),
        owner=owner.described(who),
        owner_alive=not owner.is_dead(who, float(lease_age)),
        created_at=now - float(age),
        deadline=now + float(left),
        kept=kept == "kept",
    )


def _refuse_unsupported(spec: SandboxSpec) -> None:
    if spec.image is not None:
        raise NotSupported(f"the ssh backend runs no images, and the task needs {spec.image!r}")
    if spec.network.mode != "public":
        raise NotSupported(_NO_NETWORK_POLICY)
    if spec.resources.gpus:
        raise NotSupported("the ssh backend gives no GPU to a sandbox")


def _environment(directory: str, user: str, path: str) -> dict[str, str]:
    return {
        "PATH": path,
        "HOME": f"{directory}/home",
        "TMPDIR": f"{directory}/tmp",
        "USER": user,
        "LOGNAME": user,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def _prelude(directory: str, family: str, processes: int) -> str:
    """Runs before every command."""
    gone = f"{{ echo {quote(gone_message(family))} >&2; exit {GONE}; }}"
    return (
        f"[ -d {quote(directory)} ] || {gone}\n"
        "unset SSH_CLIENT SSH_CONNECTION SSH_TTY SSH_AUTH_SOCK SSH_ORIGINAL_COMMAND MAIL OLDPWD\n"
        f"{process_limit(processes)}"
    )


def _nothing() -> None:
    """No one waits for the release yet."""
