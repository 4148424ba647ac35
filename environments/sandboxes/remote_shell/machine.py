"""What a machine must offer so that ``RemoteSandbox`` can do the rest by POSIX shell."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from environments.errors import NotSupported

Receiver = Callable[[int, bytes], None]
"""Takes output as it comes: 1 and its bytes for stdout, 2 for stderr."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a program ended: by ``status``, or by ``signal``."""

    status: int = 0
    signal: int | None = None

    @property
    def code(self) -> int:
        """Exit code as a shell would say it: 128 + n for signal n."""
        return self.status if self.signal is None else 128 + self.signal


class Channel(ABC):
    """One running program: its input, its output by the receiver it was opened with, its end."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Write to its standard input, waiting for room. ``BrokenPipeError`` where it takes no more."""

    @abstractmethod
    def close_stdin(self) -> None:
        """Close its standard input."""

    @abstractmethod
    async def wait(self) -> Exit:
        """Its end, once all that it had printed has been received.

        ``SandboxError`` where the way to it was lost. Output of processes that it left behind is
        not waited for.
        """

    @abstractmethod
    def pause(self) -> None:
        """Receive nothing until ``resume``; the program waits when its pipe is full."""

    @abstractmethod
    def resume(self) -> None:
        """Receive again."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it, without killing anything. Idempotent."""


class Machine(ABC):
    """One sandbox's machine, as seen from here."""

    @abstractmethod
    async def open(self, program: bytes, receive: Receiver, *, pty: bool = False) -> Channel:
        """Have ``sh`` run ``program``, which is one compound command, with streams to us.

        With ``pty`` all three streams are one terminal. Raises ``SandboxError`` or ``SandboxBroken``.
        """

    @abstractmethod
    async def kill(self, mark: str) -> None:
        """Kill every process whose mark begins with ``mark``, however it detached itself."""

    async def check(self, ended: Exit) -> None:  # noqa: B027 - a machine may have no way to tell
        """Raise ``SandboxBroken`` or ``SandboxError`` where a program ended as ``ended`` says because the
        machine itself is gone."""

    def wake(self, channel: Channel) -> bool:
        """Have the program of ``channel`` go on where something has stopped it; whether it was stopped.

        A machine that cannot tell says that it was not.
        """
        return False

    @abstractmethod
    async def alive(self) -> bool:
        """Whether it can still run a program. Raises nothing."""

    async def keep(self, seconds: float) -> float:
        """Let it live on for about so long, whatever becomes of us; the Unix time at which it ends."""
        raise NotSupported("this machine cannot be kept")

    async def detach(self) -> None:
        """Let go of it without ending it."""
        raise NotSupported("this machine cannot be left")

    @abstractmethod
    async def release(self) -> None:
        """Kill and remove everything that belongs to it; raises nothing for what is gone already."""
