"""A proxy for HTTP and tunnels that connects to listed hosts only.

It runs in the framework, accepts on a socket that listens inside a sandbox's network, and resolves
names itself: the sandbox needs, and has, no way to a resolver or anywhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable

from environments.sandboxes.egress.hosts import Address, AllowList, is_public, parse_address
from environments.sandboxes.egress.requests import LONGEST_HEAD, BadRequest, Request, body, parse

logger = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
"""Connections served at a time; further ones wait in the kernel and cost this process nothing."""

_HEAD_PATIENCE = 60.0
_CONNECT_PATIENCE = 30.0
_PART = 1 << 16
_PAUSE = 0.2

Resolver = Callable[[str], Awaitable[list[Address]]]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Refused(Exception):
    """A host that is not to be reached, or cannot; with the HTTP status and the words for the client."""

    def __init__(self, status: str, message: str) -> None:
        self.status = status
        super().__init__(message)


async def resolve(name: str) -> list[Address]:
    """Addresses of a name, by this machine's own resolver. ``OSError`` where it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = (parse_address(str(entry[4][0])) for entry in found)
    return list(dict.fromkeys(address for address in addresses if address is not None))


class FilteringProxy:
    """Serves one sandbox from ``listen`` to ``close``."""

    def __init__(self, allowed: AllowList, *, resolver: Resolver = resolve) -> None:
        self._allowed = allowed
        self._resolve = resolver
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(MOST_CONNECTIONS)
        self._serving: set[asyncio.Task[None]] = set()

    def listen(self, listener: socket.socket) -> None:
        """Serve what connects to a listening socket, which is ours from now on."""
        listener.setblocking(False)
        self._listener = listener
        self._accepting = asyncio.create_task(self._accept(listener))

    async def close(self) -> None:
        """Cut all connections. Idempotent."""
        tasks = [*self._serving, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # the client is gone already, or we have no descriptor left just now
                logger.debug("a connection to the proxy could not be accepted: %s", error)
                self._slots.release()
                await asyncio.sleep(_PAUSE)
                continue
            except BaseException:  # cancelled, too: the slot is nobody's
                self._slots.release()
                raise
            task = asyncio.create_task(self._serve(connection))
            self._serving.add(task)
            task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        self._slots.release()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=LONGEST_HEAD)
        except BaseException:  # cancelled, too: nobody else has the connection
            connection.close()
            raise
        try:
            # A client that hangs up, or a server, ends the connection and nothing else.
            with contextlib.suppress(OSError, EOFError, BadRequest):
                await self._answer(reader, writer)
        finally:
            await _close(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_PATIENCE):
                request = parse(await reader.readuntil(b"\r\n\r\n"))
            upstream = await self._connect(request)
        except BadRequest as error:
            await _say(writer, "400 Bad Request", str(error))
        except asyncio.LimitOverrunError:
            await _say(writer, "431 Request Header Fields Too Large", "the request's head is too long")
        except TimeoutError:
            await _say(writer, "408 Request Timeout", "no whole request arrived")
        except Refused as refusal:
            logger.debug("a sandbox was refused a connection: %s", refusal)
            await _say(writer, refusal.status, str(refusal))
        else:
            try:
                await _relay(request, (reader, writer), upstream)
            finally:
                await _close(upstream[1])

    async def _connect(self, request: Request) -> Streams:
        """A connection to where the request wants to go. Raises ``Refused``."""
        problem = "it has no address"
        for address in await self.usable_addresses(request):
            try:
                async with asyncio.timeout(_CONNECT_PATIENCE):
                    return await asyncio.open_connection(str(address), request.port, limit=LONGEST_HEAD)
            except OSError as error:  # TimeoutError is one too
                problem = str(error) or type(error).__name__
        raise Refused("502 Bad Gateway", f"{request.host} cannot be reached: {problem}")

    async def usable_addresses(self, request: Request) -> list[Address]:
        """The addresses that a request may be connected to. Raises ``Refused``."""
        host, port = request.host, request.port
        address = parse_address(host)
        if address is not None:
            if self._allowed.allows_address(address, port):
                return [address]
            raise _forbidden(f"{host}:{port} is not on this sandbox's list of allowed hosts")
        if not self._allowed.allows_name(host, port):
            raise _forbidden(f"{host}:{port} is not on this sandbox's list of allowed hosts")
        try:
            async with asyncio.timeout(_CONNECT_PATIENCE):
                found = await self._resolve(host)
        except (OSError, UnicodeError) as error:
            raise Refused("502 Bad Gateway", f"{host} cannot be resolved: {error}") from error
        usable = [a for a in found if is_public(a) or self._allowed.allows_address(a, port)]
        if found and not usable:
            raise _forbidden(f"{host} is an address of a private network, which is not listed itself")
        return usable


def _forbidden(text: str) -> Refused:
    return Refused("403 Forbidden", text)


async def _relay(request: Request, client: Streams, server: Streams) -> None:
    """Pass bytes both ways until both have ended, or one is gone."""
    if request.head is None:
        client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        sending = asyncio.ensure_future(_copy(client[0], server[1]))
    else:
        server[1].write(request.head)
        sending = asyncio.ensure_future(_send_body(request, client[0], server[1]))
    receiving = asyncio.ensure_future(_copy(server[0], client[1]))
    running = {sending, receiving}
    try:
        while running and not (request.head is not None and receiving.done()):
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PART):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def _send_body(request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async for part in body(request, reader):
        writer.write(part)
        await writer.drain()


async def _say(writer: asyncio.StreamWriter, status: str, text: str) -> None:
    content = text.encode("utf-8", "replace") + b"\n"
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):  # it was gone already
        await writer.wait_closed()
