"""One Modal sandbox as a machine with a shell."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from environments.errors import SandboxBroken, SandboxError, SandboxReleased
from environments.sandboxes.hosted import ownership
from environments.sandboxes.hosted.end_mark import WRAPPER, new_token
from environments.sandboxes.modal.channel import ModalChannel
from environments.sandboxes.modal.sdk import kinds, text_of
from environments.sandboxes.remote_shell.attention import until_silent
from environments.sandboxes.remote_shell.killing import kill_for_good
from environments.sandboxes.remote_shell.machine import Exit, Machine, Receiver
from environments.sandboxes.remote_shell.output import WholeOutput
from environments.sandboxes.remote_shell.program import BOOTSTRAP, framed, quote

logger = logging.getLogger(__name__)

_LONGEST_ARGUMENT = 48_000
"""Modal takes 64 KiB of arguments; longer programs go through standard input."""

_PATIENCE = 120.0
_START_PATIENCE = 60.0
"""Seconds in which Modal begins a program."""

_KILL_PATIENCE = 15.0
"""Seconds in which processes are looked for once. An agent may stop what does so, for ever."""

_STOPPED_FROM_OUTSIDE = {124: "its lifetime is over", 137: "it was terminated from outside"}


class ModalMachine(Machine):
    """Programs run by ``Sandbox.exec``."""

    def __init__(self, sandbox: Any, labels: Mapping[str, str], on_released: Callable[[], None]) -> None:
        self._sandbox = sandbox
        self._labels = labels
        self._on_released = on_released
        self._released = False
        self.scratch = "/tmp"

    async def open(self, program: bytes, receive: Receiver, *, pty: bool = False) -> ModalChannel:
        """Have ``sh`` run ``program`` in the sandbox."""
        text = _as_argument(program)
        if text is not None:
            return await self._start(text, receive, pty=pty)
        if pty:  # a terminal would cut and echo a program sent through it
            return await self._start(await self._by_file(program), receive, pty=True)
        channel = await self._start(BOOTSTRAP, receive)
        try:
            await channel.write(framed(program))
        except BrokenPipeError:  # ended at once; ``wait`` says how
            return channel
        except BaseException:  # cancelled, too: nobody else knows the channel
            channel.close()
            raise
        return channel

    async def run(self, program: bytes, *, patience: float = _PATIENCE) -> tuple[Exit, bytes, bytes]:
        """Run a program of ours to its end: how it ended, stdout, stderr.

        It is given up where it prints nothing for ``patience`` seconds.
        """
        output = WholeOutput()
        channel = None
        try:
            channel = await self.open(program, output.receive)
            channel.close_stdin()
            ended = await until_silent(channel, output, patience)
        except TimeoutError:
            raise SandboxError(f"the Modal sandbox {self._sandbox.object_id} does not answer") from None
        finally:
            if channel is not None:
                channel.close()
        return ended, output.stdout, output.stderr

    async def kill(self, mark: str) -> None:
        """Kill every process whose mark begins with ``mark``."""
        ended, _, message = await self.run(kill_for_good(mark, self.scratch), patience=_KILL_PATIENCE)
        if ended.code:
            raise SandboxError(f"some processes of the Modal sandbox cannot be killed: {message[-200:]!r}")

    async def alive(self) -> bool:
        """Whether it can still run a program."""
        try:
            ended, _, _ = await self.run(b"{ exit 0; }", patience=30.0)
        except SandboxError:
            return False
        return ended.code == 0

    async def keep(self, seconds: float) -> float:
        """Mark it as kept. It ends at the deadline that it was made with, or at the next start after that."""
        labels = ownership.kept_labels(self._labels, seconds)
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._sandbox.set_tags.aio(labels)
        except Exception as error:  # the SDK's own and gRPC's
            raise await self._explain(error) from error
        return float(labels[ownership.KEPT])

    async def detach(self) -> None:
        """Let go of it without ending it."""
        self._released = True
        with contextlib.suppress(Exception):  # it only closes connections
            if hasattr(self._sandbox, "detach"):
                await self._sandbox.detach.aio()
        self._on_released()

    async def release(self) -> None:
        """Terminate it. Where Modal does not answer its lifetime, or the next run, ends it."""
        self._released = True
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._sandbox.terminate.aio()
                if hasattr(self._sandbox, "detach"):
                    await self._sandbox.detach.aio()
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of one that is gone already
            if "NotFoundError" not in kinds(error):
                logger.warning("a Modal sandbox may be left until its lifetime ends: %s", text_of(error))
        finally:
            self._on_released()

    async def _start(self, program: str, receive: Receiver, *, pty: bool = False) -> ModalChannel:
        token = new_token()
        try:
            async with asyncio.timeout(_START_PATIENCE):
                process = await self._sandbox.exec.aio(
                    *("sh", "-c", WRAPPER, "sh", program, token, "terminal" if pty else ""),
                    text=False,
                    pty=pty,
                )
        except Exception as error:  # the SDK's own and gRPC's
            raise await self._explain(error) from error
        return ModalChannel(process, token, receive, self._explain, pty=pty)

    async def _by_file(self, program: bytes) -> str:
        file = quote(f"{self.scratch}/program-{new_token()}")
        save = f"{{ umask 077; cat >{file}; }}".encode()
        channel = await self.open(save, WholeOutput().receive)
        try:
            async with asyncio.timeout(_START_PATIENCE):
                await channel.write(program)
                channel.close_stdin()
                await channel.wait()
        except TimeoutError:
            raise SandboxError(f"the Modal sandbox {self._sandbox.object_id} does not answer") from None
        finally:
            channel.close()
        return f'p=$(cat {file}); rm -f {file}; eval "$p"'

    async def _explain(self, error: BaseException) -> SandboxError:
        """Why a program cannot be started or followed any more."""
        name = f"the Modal sandbox {self._sandbox.object_id}"
        if self._released:
            return SandboxReleased(f"{name} was released")
        code = None
        with contextlib.suppress(Exception):  # then the first error is all we know
            async with asyncio.timeout(30):
                code = await self._sandbox.poll.aio()
        if code is None:
            return SandboxError(f"{name} cannot be reached: {text_of(error)}")
        if code in _STOPPED_FROM_OUTSIDE:
            return SandboxError(f"{name} is gone: {_STOPPED_FROM_OUTSIDE[code]}")
        return SandboxBroken(f"a command ended {name}, whose first process died with exit code {code}")


def _as_argument(program: bytes) -> str | None:
    """A program as an argument; None where it is too long, or no text."""
    if len(program) > _LONGEST_ARGUMENT:
        return None
    try:
        return program.decode()
    except UnicodeDecodeError:
        return None
