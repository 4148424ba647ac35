"""One Daytona sandbox as a machine with a shell."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from environments.errors import SandboxBroken, SandboxError, SandboxReleased
from environments.sandboxes.daytona import driver
from environments.sandboxes.daytona.channel import CommandChannel, TerminalChannel
from environments.sandboxes.daytona.connection import Connection
from environments.sandboxes.daytona.sdk import status_of, text_of
from environments.sandboxes.hosted import ownership
from environments.sandboxes.hosted.end_mark import new_token
from environments.sandboxes.hosted.survey import place_of, survey
from environments.sandboxes.remote_shell.killing import kill_for_good
from environments.sandboxes.remote_shell.machine import Channel, Machine, Receiver
from environments.sandboxes.remote_shell.output import WholeOutput
from environments.sandboxes.remote_shell.program import framed, quote
from environments.sandboxes.remote_shell.sandbox import Place

logger = logging.getLogger(__name__)

_MOST_IDLE = 16
"""Terminals kept for later commands; opening one costs the SDK a tenth of a second at least."""

_PATIENCE = 120
_KILL_PATIENCE = 20
"""Seconds in which processes are found and killed. An agent may stop what does so, for ever."""

_ANSWERING = 5
"""Seconds that Daytona has on top of what a command may take, to say that it took longer."""

_ENDED_BY_ITSELF = {"stopped", "stopping", "error"}


class DaytonaMachine(Machine):
    """Programs run in terminals; our own errands by Daytona's call for commands."""

    def __init__(
        self,
        client: Any,
        sandbox: Any,
        labels: Mapping[str, str],
        lifetime: float,
        on_released: Callable[[], None],
    ) -> None:
        self._labels = labels
        self._client = client
        self._sandbox = sandbox
        self._deadline = time.monotonic() + lifetime
        self._on_released = on_released
        self._released = False
        self._scratch = ""
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._doubtful: set[Connection] = set()
        """Those that were open when a command killed its own terminal, and perhaps others with it: what is
        sent to one of them may be lost, as its end is told later."""

    async def prepare(self, family: str, working_directory: str | None, environment: dict[str, str]) -> Place:
        """Look around, and make the directories that are needed."""
        code, answer = await self._run(survey(family, working_directory))
        if code:
            raise SandboxError(f"a sandbox of Daytona cannot be used: {answer[-500:]!r}")
        place = place_of(family, answer, environment)
        self._scratch = place.scratch
        return place

    async def open(self, program: bytes, receive: Receiver, *, pty: bool = False) -> Channel:
        """Have ``sh`` run ``program`` in the sandbox."""
        if pty:
            return await self._open_terminal(program, receive)
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            command = await connection.start(framed(program), receive)
        except BrokenPipeError:  # the terminal ended while it lay idle
            await self._drop(connection)
            connection = await self._connect()
            command = await connection.start(framed(program), receive)
        except BaseException:  # cancelled, too: nobody else has the connection
            await asyncio.shield(asyncio.ensure_future(self._drop(connection)))
            raise
        return CommandChannel(connection, command, self._explain)

    async def kill(self, mark: str) -> None:
        """Kill every process whose mark begins with ``mark``."""
        code, answer = await self._run(kill_for_good(mark, self._scratch).decode(), patience=_KILL_PATIENCE)
        if code:
            raise SandboxError(f"some processes of the Daytona sandbox cannot be killed: {answer[-200:]!r}")

    async def alive(self) -> bool:
        """Whether it can still run a program."""
        try:
            code, _ = await self._run("exit 0", patience=30)
        except SandboxError:
            return False
        return code == 0

    async def keep(self, seconds: float) -> float:
        """Mark it as kept. It ends at the deadline that it was made with, or at the next start after that."""
        labels = ownership.kept_labels(self._labels, seconds)
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._sandbox.set_labels(labels)
        except Exception as error:  # the SDK's own and aiohttp's
            raise await self._why(text_of(error)) from error
        return float(labels[ownership.KEPT])

    async def detach(self) -> None:
        """Let go of it without ending it."""
        self._released = True
        await asyncio.gather(*(connection.close() for connection in list(self._open)))
        self._on_released()

    async def release(self) -> None:
        """Delete it. Where Daytona does not answer its lifetime, or the next run, ends it."""
        self._released = True
        try:
            await self._sandbox.delete(timeout=_PATIENCE)
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of one that is gone already
            if status_of(error) not in (404, 409):
                logger.warning("a Daytona sandbox may be left until its lifetime ends: %s", text_of(error))
        finally:
            await asyncio.gather(*(connection.close() for connection in list(self._open)))
            self._on_released()

    # -- terminals ------------------------------------------------------------------------------

    async def _connect(self) -> Connection:
        connection = Connection(self._settled)
        self._open.add(connection)
        try:
            await connection.open(self._sandbox.process, self._scratch)
        except BaseException as error:  # cancelled, too: nobody else has the connection
            await asyncio.shield(asyncio.ensure_future(self._drop(connection)))
            if not isinstance(error, Exception):
                raise
            raise await self._why(text_of(error)) from error
        return connection

    async def _settled(self, connection: Connection, ready: bool) -> None:
        wanted = not self._released and len(self._idle) < _MOST_IDLE
        if ready and wanted and connection not in self._doubtful:
            self._idle.append(connection)
        else:
            await self._drop(connection)

    async def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._doubtful.discard(connection)
        await connection.close()

    async def _doubt(self) -> None:
        """Give no command a terminal that is open now."""
        self._doubtful |= self._open
        idle, self._idle = self._idle, []
        await asyncio.gather(*map(self._drop, idle))

    async def _open_terminal(self, program: bytes, receive: Receiver) -> Channel:
        """A terminal would echo a program and cut its lines, so the program goes by a file."""
        token = new_token()
        file = f"{self._scratch}/program-{token}"
        await self._save(program, file)
        channel = TerminalChannel(token, receive, self._explain)
        try:
            await channel.terminal.open(self._sandbox.process, driver.terminal(), token, file)
        except BaseException as error:  # cancelled, too: nobody else has the terminal
            channel.close()
            if not isinstance(error, Exception):
                raise
            raise await self._why(text_of(error)) from error
        return channel

    async def _save(self, data: bytes, file: str) -> None:
        output = WholeOutput()
        channel = await self.open(
            f"{{ umask 077; mkdir -p {quote(self._scratch)}; exec cat >{quote(file)}; }}".encode(),
            output.receive,
        )
        try:
            async with asyncio.timeout(_KILL_PATIENCE):
                await channel.write(data)
                channel.close_stdin()
                ended = await channel.wait()
            if ended.code:
                raise SandboxError(f"the sandbox cannot start a terminal: {output.stderr[-500:]!r}")
        except TimeoutError:
            raise await self._why("a program in it does not end") from None
        finally:
            channel.close()

    # -- errands --------------------------------------------------------------------------------

    async def _run(self, text: str, *, patience: int = _PATIENCE) -> tuple[int, str]:
        """Run shell text of ours: exit code, and both streams as text."""
        try:
            async with asyncio.timeout(patience + _ANSWERING):
                answer = await self._sandbox.process.exec(f"sh -c {quote(text)}", timeout=patience)
        except Exception as error:  # the SDK's own and aiohttp's
            raise await self._why(text_of(error)) from error
        return int(answer.exit_code or 0), str(answer.result or "")

    async def _explain(self, shell_ended: bool) -> SandboxError | None:
        """Why a terminal ended; None where a command killed its shell, and the sandbox is well."""
        if shell_ended and not self._released:
            await self._doubt()
            if await self.alive():
                return None
        return await self._why("the connection to a command was cut")

    async def _why(self, what: str) -> SandboxError:
        """Why the sandbox does not do what it was asked for."""
        name = f"the Daytona sandbox {self._sandbox.id}"
        if self._released:
            return SandboxReleased(f"{name} was released")
        try:
            async with asyncio.timeout(30):
                state = (await self._client.get(self._sandbox.id)).state
        except Exception as error:  # noqa: BLE001 - the SDK's own and aiohttp's
            if status_of(error) == 404:
                return SandboxError(f"{name} is gone: {self._end_of_time()}")
            return SandboxError(f"{name} cannot be reached: {what}")
        word = str(getattr(state, "value", state))
        if word in _ENDED_BY_ITSELF and time.monotonic() < self._deadline:
            return SandboxBroken(f"a command ended {name}, which is {word} now")
        if word in ("started", "starting", "unknown"):
            return SandboxError(f"{name} cannot be reached: {what}")
        return SandboxError(f"{name} is {word}: {self._end_of_time()}")

    def _end_of_time(self) -> str:
        over = time.monotonic() >= self._deadline
        return "its lifetime is over" if over else "it was removed from outside"
