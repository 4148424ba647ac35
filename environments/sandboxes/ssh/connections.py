"""A few connections to one machine, shared by many programs."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from socket import gaierror
from typing import Any

from environments.errors import ConfigError, MissingExtra, SandboxError
from environments.sandboxes.remote_shell.machine import Receiver
from environments.sandboxes.ssh.explaining import explain_key, explain_refusal
from environments.sandboxes.ssh.options import Address, SSHOptions
from environments.sandboxes.ssh.session import SSHChannel

CHANNELS_PER_CONNECTION = 8
"""OpenSSH's default allows 10 (``MaxSessions``); the other two are for kills."""

URGENT_CHANNELS = 2
MAX_CONNECTIONS = 64
_TRIES = 6
_CONNECT_TIMEOUT = 30.0
_CHANNEL_TIMEOUT, _URGENT_TIMEOUT = 10.0, 5.0
"""Seconds in which a server opens a channel on a connection that is there. A command may have stopped the
process that serves it."""

_PAUSE = 5.0
"""Seconds without a new try after a machine could not be reached."""


class Connection:
    """One connection and the number of channels in use on it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.used = 0
        self.limit = CHANNELS_PER_CONNECTION
        self.answers = True
        """Whether it opened the last channel that it was asked for. Else it gets no more of them, but those
        that it has may go on."""


class Connections:
    """Opens channels, on as many connections as they need."""

    def __init__(self, options: SSHOptions) -> None:
        self.options = options
        self._next = options.target
        """The machine that is being connected to, the target or a jump host on the way."""
        self._connections: list[Connection] = []
        self._jumps: list[Any] = []
        self._connecting = asyncio.Lock()
        self._freed = asyncio.Event()
        self._closed = False
        self._failure: tuple[float, SandboxError] | None = None

    async def open(
        self, command: str, receive: Receiver, *, pty: bool = False, urgent: bool = False
    ) -> SSHChannel:
        """Start a program. ``urgent`` ones do not wait behind others. ``SandboxError`` where it fails."""
        reason = ""
        patience = _URGENT_TIMEOUT if urgent else _CHANNEL_TIMEOUT
        silent = 0
        for _ in range(_TRIES):
            link = await self._acquire(urgent)
            opening = asyncio.ensure_future(self._open(link, command, receive, pty, patience))
            try:
                return await asyncio.shield(opening)
            except asyncio.CancelledError:
                opening.add_done_callback(_close_unwanted)
                raise
            except _Refused as error:
                reason = str(error)
                silent += not link.answers
                if silent > 1:
                    break
        raise SandboxError(f"{self.options.target} opens no channel: {reason}")

    async def _open(
        self, link: Connection, command: str, receive: Receiver, pty: bool, patience: float
    ) -> SSHChannel:
        import asyncssh

        channel = SSHChannel(receive, str(self.options.target), lambda: self._free(link))
        try:
            async with asyncio.timeout(patience):
                await link.connection.create_session(
                    lambda: channel,
                    command,
                    encoding=None,
                    request_pty="force" if pty else False,
                    term_type="xterm" if pty else None,
                )
        except TimeoutError:
            link.answers = False
            if not channel.made:
                self._free(link)
            raise _Refused(f"no answer within {patience:.0f} s") from None
        except (asyncssh.Error, OSError) as error:
            if not channel.made:
                self._free(link)
            if isinstance(error, asyncssh.ChannelOpenError) and not link.connection.is_closed():
                link.limit = max(1, link.used)  # the server allows fewer sessions than we thought
            else:
                self._drop(link)
            raise _Refused(str(error)) from error
        return channel

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        self._freed.set()
        await asyncio.gather(*(_end(link.connection) for link in self._connections))
        for jump in reversed(self._jumps):
            await _end(jump)
        self._connections.clear()
        self._jumps.clear()

    async def _acquire(self, urgent: bool) -> Connection:
        while not self._closed:
            self._freed.clear()
            found = self._free_connection(urgent)
            if found is None and len(self._connections) < MAX_CONNECTIONS:
                async with self._connecting:
                    found = self._free_connection(urgent)  # another waiter may have connected
                    if found is None:
                        found = Connection(await self._connect_unless_in_vain())
                        self._connections.append(found)
                    found.used += 1
                return found
            if found is not None:
                found.used += 1
                return found
            await self._freed.wait()
        raise SandboxError("the backend is closed")

    def _free_connection(self, urgent: bool) -> Connection | None:
        for link in [link for link in self._connections if link.connection.is_closed()]:
            self._drop(link)
        spare = URGENT_CHANNELS if urgent else 0
        able = (link for link in self._connections if link.answers and link.used < link.limit + spare)
        return next(able, None)

    def _free(self, link: Connection) -> None:
        link.used -= 1
        if not link.answers and link.used <= 0:
            self._drop(link)
        self._freed.set()

    def _drop(self, link: Connection) -> None:
        if link in self._connections:
            self._connections.remove(link)
            link.connection.close()
        self._freed.set()

    async def _connect_unless_in_vain(self) -> Any:
        """Connect; where that has just failed, those who waited behind it fail at once."""
        now = asyncio.get_running_loop().time()
        if self._failure is not None and now < self._failure[0]:
            raise SandboxError(str(self._failure[1])) from self._failure[1]
        try:
            return await self._connect()
        except SandboxError as error:
            self._failure = (asyncio.get_running_loop().time() + _PAUSE, error)
            raise

    async def _connect(self) -> Any:
        """A new connection. ``ConfigError`` where trying again cannot help, else ``SandboxError``."""
        import asyncssh

        delay = 0.2
        for left in reversed(range(_TRIES)):
            try:
                return await self._connect_once()
            except (asyncssh.PermissionDenied, asyncssh.HostKeyNotVerifiable) as error:
                raise ConfigError(explain_refusal(self.options, self._next, error)) from error
            except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError) as error:
                raise ConfigError(explain_key(self.options, error)) from error
            except asyncssh.ConfigParseError as error:
                raise ConfigError(f"cannot connect to {self._name()}: {error}") from error
            except (asyncssh.Error, OSError, TimeoutError) as error:
                # A busy server drops connections before they are authenticated (MaxStartups).
                if left == 0 or isinstance(error, ConnectionRefusedError | gaierror):
                    raise SandboxError(f"cannot connect to {self._name()}: {_text(error)}") from error
            await asyncio.sleep(delay * (0.5 + random.random()))
            delay *= 2
        raise AssertionError("unreachable")

    async def _connect_once(self) -> Any:
        import asyncssh

        tunnel = await self._tunnel()
        self._next = self.options.target
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            return await asyncssh.connect(
                **_address(self.options.target), tunnel=tunnel, **self.options.for_asyncssh()
            )

    async def _tunnel(self) -> Any:
        """The connection to the last jump host, shared by all; None where there is none."""
        import asyncssh

        if self._jumps and not all(not jump.is_closed() for jump in self._jumps):
            for jump in self._jumps:
                jump.close()
            self._jumps.clear()
        for address in self.options.jumps[len(self._jumps) :]:
            before = self._jumps[-1] if self._jumps else None
            self._next = address
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                self._jumps.append(
                    await asyncssh.connect(**_address(address), tunnel=before, **self.options.for_asyncssh())
                )
        # Where no jump host is given, asyncssh follows ProxyJump of ~/.ssh/config.
        return self._jumps[-1] if self._jumps else ()

    def _name(self) -> str:
        return str(self._next) if self._next == self.options.target else f"the jump host {self._next}"


class _Refused(Exception):
    """A channel was not opened; another connection may do it."""


def require_asyncssh() -> None:
    """``MissingExtra`` where asyncssh is not installed."""
    if importlib.util.find_spec("asyncssh") is None:
        raise MissingExtra("the ssh backend", "ssh")


async def _end(connection: Any) -> None:
    """Close a connection, even one whose server does not answer."""
    connection.close()
    try:
        async with asyncio.timeout(5):
            await connection.wait_closed()
    except TimeoutError:
        connection.abort()


def _address(address: Address) -> dict[str, Any]:
    found: dict[str, Any] = {"host": address.host}
    if address.user is not None:
        found["username"] = address.user
    if address.port is not None:
        found["port"] = address.port
    return found


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _close_unwanted(opening: asyncio.Future[SSHChannel]) -> None:
    """Close a channel whose caller was cancelled before it had it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
