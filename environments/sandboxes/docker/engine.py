"""HTTP to a Docker or Podman engine: plain requests, streams, and connections taken over for a command."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from environments.errors import SandboxError
from environments.sandboxes.docker.address import Address

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

JSON = dict[str, Any]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_CONNECT_TIMEOUT = 30.0
_STREAM_BUFFER = 1 << 18


class EngineError(SandboxError):
    """The engine refused a request (``status`` is its HTTP status) or did not answer (None)."""

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


class Engine:
    """One engine. Connections are made at the first request and belong to the running event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._session: ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JSON | None = None,
        timeout: float = 60.0,
    ) -> Any:
        """One request; the answer's JSON, or None where there is none. Raises ``EngineError``."""
        async with self.stream(method, path, query=query, body=body, timeout=timeout) as response:
            content = await response.read()
        return json.loads(content) if content.strip() else None

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: JSON | None = None,
        data: Any = None,
        timeout: float | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """One request whose answer is read by the caller. ``timeout`` covers all of it."""
        import aiohttp

        sent = json.dumps(body).encode() if body is not None else data
        more = {"Content-Type": "application/json"} if body is not None else {}
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_TIMEOUT)
        try:
            async with self._client().request(
                method,
                f"{self.address.url}{path}",
                params=dict(query or {}),
                headers={**more, **(headers or {})},
                data=sent,
                timeout=limits,
            ) as response:
                if response.status >= 400:
                    raise EngineError(_message(await response.read()), response.status)
                yield response
        except TimeoutError as error:
            raise EngineError(f"the engine did not answer {method} {path} within {timeout} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineError(self.unreachable(error)) from error

    async def take_over(self, path: str, body: JSON, timeout: float = 120.0) -> Connection:
        """POST and keep the connection as a raw two-way stream, as the engine's attach calls do it."""
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self.address.host}\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer = None
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await self._connect()
                writer.write(head.encode() + content)
                await _read_head(reader)
        except BaseException as error:  # cancelled, too: nobody else has the connection
            if writer is not None:
                writer.close()
            if isinstance(error, TimeoutError):
                raise EngineError(f"the engine did not answer POST {path} within {timeout} s") from error
            if isinstance(error, OSError | EOFError):
                raise EngineError(self.unreachable(error)) from error
            raise
        return reader, writer

    async def close(self) -> None:
        """Close idle connections. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def unreachable(self, error: BaseException) -> str:
        """One line about an engine that cannot be talked to, with the cure."""
        number = getattr(error, "errno", None)
        where = f"the container engine at {self.address}"
        if number == errno.EACCES:
            return f"{where} refuses you: add it to the group 'docker' and log in again, or set DOCKER_HOST"
        if number in (errno.ENOENT, errno.ECONNREFUSED):
            return f"{where} does not run: start dockerd or `podman system service`, or set DOCKER_HOST"
        return f"{where} cannot be reached: {error or type(error).__name__}"

    def _client(self) -> ClientSession:
        import aiohttp

        if self._session is None:
            connector: aiohttp.BaseConnector
            if self.address.path is not None:
                connector = aiohttp.UnixConnector(self.address.path, limit=0)
            else:
                connector = aiohttp.TCPConnector(limit=0, ssl=self.address.tls or True)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        return self._session

    async def _connect(self) -> Connection:
        if self.address.path is not None:
            return await asyncio.open_unix_connection(self.address.path, limit=_STREAM_BUFFER)
        return await asyncio.open_connection(
            self.address.host, self.address.port, ssl=self.address.tls, limit=_STREAM_BUFFER
        )


async def _read_head(reader: asyncio.StreamReader) -> None:
    """Read the head of the answer; ``EngineError`` unless the stream follows it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status = int(head.split(" ", 2)[1])
    fields = (line.partition(":") for line in head.split("\r\n")[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    if status == 101 or (status == 200 and "stream" in headers.get("content-type", "")):
        return
    length = headers.get("content-length", "")
    body = await reader.readexactly(int(length)) if length.isdigit() else await reader.read(65536)
    raise EngineError(_message(body), status)


def _message(body: bytes) -> str:
    try:
        content = json.loads(body)
        return str(content.get("message") or content.get("cause") or content).strip()
    except (ValueError, AttributeError):
        return body.decode("utf-8", "replace").strip()[:2000]
