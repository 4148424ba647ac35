"""The protocol every sandbox backend speaks, and the plain values it exchanges.

A *backend* (one per environment and run) creates *sandboxes* (one per rollout). A sandbox runs
commands, keeps background processes, moves bytes, and is released exactly once. All methods are
coroutines, none blocks the event loop, and every one of them is safe to cancel: a cancelled
``exec`` kills what it had started.

Errors: ``SandboxReleased`` after ``close``; ``SandboxBroken`` when the agent destroyed the sandbox;
``SandboxError`` when the engine failed; ``FileNotFoundError``, ``IsADirectoryError``,
``NotADirectoryError``, ``PermissionError``, ``OSError`` for file operations, as the local file
system would raise them, ``SandboxDiskError`` for a disk of the sandbox's that takes nothing more;
``TypeError`` and ``ValueError`` for a caller's mistake (see ``arguments.py``).
"""

from __future__ import annotations

import errno
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from environments.errors import NotSupported, SandboxDiskError
from environments.records import SandboxInfo
from environments.sandboxes import arguments

if TYPE_CHECKING:
    from environments.sandboxes.editing import LoadedFile, SavedFile

Command = str | Sequence[str]
"""Shell text (run by ``bash -c``, or ``sh -c`` where there is no bash) or an argument vector."""

DEFAULT_OUTPUT_LIMIT = 1_000_000
"""Bytes kept of each output stream: the first 40 % and the last 60 %."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25


def file_error(number: int, reason: str | None, path: object) -> OSError:
    """The error of a file operation in a sandbox, of the class that the local file system would raise."""
    full = number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    return (SandboxDiskError if full else OSError)(number, reason, path)


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """``none``, ``public``, or ``allow-list`` with the hosts that may be reached."""

    mode: Literal["none", "public", "allow-list"] = "none"
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """Limits of one sandbox. None means the backend's default."""

    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int = 0
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a rollout asks of its sandbox."""

    image: str | None = None
    network: NetworkPolicy = NetworkPolicy()
    resources: Resources = Resources()
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str | None = None
    lifetime: float = 3600.0
    """Seconds after which the backend may destroy it, whatever happens to us."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arguments.check_environment(self.environment)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; a task that needs more is refused before the run starts."""

    images: bool = False
    network_modes: frozenset[str] = frozenset({"none"})
    resources: frozenset[str] = frozenset()
    snapshots: bool = False
    gpu: bool = False
    users: bool = False
    """Whether commands can run as any user of the machine."""


@dataclass(frozen=True, slots=True)
class SandboxEntry:
    """One sandbox of ours as its engine knows it, whichever run made it. Times are Unix times."""

    backend: str
    id: str
    """As in ``SandboxInfo.id``."""
    run: str
    owner: str = ""
    """The process that made it, as far as the engine knows."""
    owner_alive: bool | None = None
    """Whether that process lives; None where it cannot be looked at from here."""
    created_at: float | None = None
    deadline: float | None = None
    kept: bool = False
    """Whether its run let it live on, so that somebody can look at it."""
    handle: Any = field(default=None, compare=False, repr=False)
    """What the backend needs to find it again."""

    @property
    def expired(self) -> bool:
        """Whether its deadline is over."""
        return self.deadline is not None and self.deadline < time.time()

    @property
    def abandoned(self) -> bool:
        """Whether nobody may want it any more: its owner is known to be dead, or its time is over.

        An owner that cannot be looked at, such as one on another machine, counts as alive.
        """
        return self.expired or (self.owner_alive is False and not self.kept)


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """What ``Sandbox.exec`` was asked for."""

    command: Command
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    timeout: float | None = None
    user: str | None = None
    merge_output: bool = False
    output_limit: int = DEFAULT_OUTPUT_LIMIT


@dataclass(slots=True)
class ExecResult:
    """How a command ended. ``exit_code`` is 124 after a time-out, 128 + n when killed by signal n."""

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    duration: float = 0.0
    timed_out: bool = False
    killed_by: int | None = None
    """Number of the signal that ended it, where one did."""
    stdout_bytes: int = 0
    """Length of the whole output, of which ``stdout`` may be an excerpt."""
    stderr_bytes: int = 0

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are no UTF-8 become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One entry of the sandbox's file system; a symbolic link is not followed."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    modified_at: float


class Process(ABC):
    """A background process of a sandbox; its output is one merged, capped stream."""

    id: str
    command: str

    @abstractmethod
    async def read(self) -> bytes:
        """Output since the last ``read``, without waiting."""

    async def read_soon(self, timeout: float) -> bytes:
        """Output since the last read; waits for some, or for the end, up to ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        pause = _FIRST_PAUSE
        while True:
            output = await self.read()
            left = deadline - time.monotonic()
            if output or left <= 0:
                return output
            if await self.wait(min(pause, left)) is not None:
                return await self.read()
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to its standard input."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """Close its standard input."""

    @abstractmethod
    async def wait(self, timeout: float | None = None) -> int | None:
        """Exit code, or None if it still runs after ``timeout`` seconds."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """Exit code once it has ended."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill it and everything it started."""


class Sandbox(ABC):
    """One machine of one rollout."""

    info: SandboxInfo
    home: str
    """Home directory of the default user."""
    working_directory: str
    """Where a command runs that names no ``cwd``."""
    scratch: str
    """A directory for the framework's own files, out of the agent's way (not hidden from it)."""

    @property
    def id(self) -> str:
        """Name of this sandbox, unique on its backend."""
        return self.info.id

    async def exec(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        user: str | None = None,
        merge_output: bool = False,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run a command to its end.

        Standard input is empty unless given. A time-out kills the command and all its descendants,
        detached ones included, and returns what was printed until then. Processes that the command
        left behind on purpose survive its normal end. ``merge_output`` sends stderr to stdout. What
        no system can start, such as an argument above 128 KiB, ends with exit code 126.
        """
        request = ExecRequest(
            arguments.check_command(command),
            arguments.check_directory(cwd),
            arguments.check_environment(env),
            arguments.check_input(stdin),
            arguments.check_timeout(timeout),
            arguments.check_user(user),
            merge_output,
            arguments.check_output_limit(output_limit),
        )
        if reason := arguments.reason_against(request.command, request.cwd, request.env):
            from environments.sandboxes import refused

            return refused.refused_result(request, reason)
        return await self._run(request)

    async def as_user(self, user: str) -> Sandbox:
        """The same machine, whose commands, processes and files are those of ``user`` (a name or number)
        unless a call says otherwise. It ends with this one. ``NotSupported`` where there is one user only.
        """
        raise NotSupported(f"the {self.info.backend} backend runs commands as one user only, not as {user!r}")

    async def _run(self, request: ExecRequest) -> ExecResult:
        """What a backend implements: run a command to its end, as ``exec`` promises."""
        raise NotImplementedError

    async def spawn(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        pty: bool = False,
    ) -> Process:
        """Start a background process. What cannot be started has ended as ``exec`` says."""
        command, cwd = arguments.check_command(command), arguments.check_directory(cwd)
        env = arguments.check_environment(env)
        if reason := arguments.reason_against(command, cwd, env):
            from environments.sandboxes import refused

            return refused.RefusedProcess(command, reason)
        return await self._spawn(command, cwd, env, pty)

    async def _spawn(self, command: Command, cwd: str | None, env: Mapping[str, str], pty: bool) -> Process:
        """What a backend implements: start a background process, of checked arguments."""
        raise NotImplementedError

    @abstractmethod
    async def read_bytes(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read a regular file (following links inside the sandbox), whole or in part, up to 256 MiB."""

    @abstractmethod
    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file, making its parent directories. Replaced whole or not at all; mode kept."""

    async def load(self, path: str, limit: int) -> LoadedFile:
        """Up to ``limit`` bytes of a regular file, where it really is, and its mode."""
        from environments.sandboxes import editing

        return await editing.load(self, path, limit)

    async def save(self, path: str, data: bytes) -> SavedFile:
        """``write_bytes`` that says where a link led to and whether a directory had to be made."""
        from environments.sandboxes import editing

        return await editing.save(self, path, data)

    @abstractmethod
    async def stat(self, path: str) -> FileInfo:
        """Kind, size and mode of one path."""

    @abstractmethod
    async def list(self, path: str) -> list[FileInfo]:
        """Entries of a directory, sorted by name."""

    @abstractmethod
    async def upload_tar(self, stream: AsyncIterator[bytes], directory: str) -> None:
        """Unpack a tar stream into a directory, which is made if missing."""

    @abstractmethod
    def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """Pack a file or tree as a tar stream; names inside are relative to its parent."""

    @abstractmethod
    async def kill_all(self) -> None:
        """Kill every process of the agent; the sandbox stays usable."""

    @abstractmethod
    async def alive(self) -> bool:
        """Whether the sandbox can still run a command."""

    @abstractmethod
    async def close(self) -> None:
        """Release it and everything in it. Idempotent; never raises for what is gone already."""

    async def keep(self, seconds: float) -> float:
        """Let it live on for about so long, whatever becomes of us, and let go of it, as ``detach`` does.

        Returns the Unix time at which it ends. The backend must have made it with a lifetime that
        reaches so far; where the engine allows less, it ends earlier.
        """
        raise NotSupported(f"the {self.info.backend} backend cannot keep a sandbox beyond its rollout")

    async def detach(self) -> None:
        """Let go of it without ending it; every later use raises ``SandboxReleased``."""
        raise NotSupported(f"the {self.info.backend} backend cannot let go of a sandbox")


class Backend(ABC):
    """Makes the sandboxes of one run. Configured once; bounded in how many it creates at a time."""

    name: str
    capabilities: Capabilities

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Make one sandbox, ready for commands. A failure leaves nothing behind."""

    async def check(self) -> None:  # noqa: B027 - optional
        """Fail early, with the cure, where the engine is missing or unusable."""

    def trouble(self) -> str | None:
        """Why no sandbox can be trusted any more, such as a full disk; None where all is well."""
        return None

    async def close(self) -> None:  # noqa: B027 - optional
        """Release what the run still holds, leftovers of its sandboxes included."""

    # What `hermes-env sandboxes` and the start of a run ask for.

    async def survey(self) -> list[SandboxEntry]:
        """Every sandbox of ours that the engine holds, whichever run made it. Changes nothing there."""
        raise NotSupported(f"the {self.name} backend cannot list its sandboxes")

    async def remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        """End these sandboxes, even if somebody uses them, with all that is theirs; those that are left."""
        raise NotSupported(f"the {self.name} backend cannot remove sandboxes of other runs")

    async def reap(self) -> list[SandboxEntry]:
        """Remove what dead runs left and what is past its deadline; the sandboxes that were removed."""
        abandoned = [entry for entry in await self.survey() if entry.abandoned]
        left = await self.remove(abandoned) if abandoned else []
        return [entry for entry in abandoned if entry not in left]

    async def attach(self, entry: SandboxEntry) -> Sandbox:
        """Join a sandbox that another process made; ``detach`` lets go of it again."""
        raise NotSupported(f"the {self.name} backend cannot join a sandbox of another process")
