"""One MCP server and the connection to it, made when it is first needed and again after it was lost.

The ``mcp`` package binds a connection to the task that opened it, so each has a task of its own.
"""

from __future__ import annotations

import asyncio
import importlib
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from environments.errors import MissingExtra
from environments.tools.mcp.settings import ServerSettings
from environments.tools.mcp.transport import ServerProgram

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

_MOST_PAGES = 100
_PROBE = 3.0
"""Seconds for a server to show that it still answers, after a call that failed."""


class ServerFailure(Exception):
    """The server cannot be reached, ended, or does not speak MCP. The text says what is known."""


class McpServer:
    """A server as its settings describe it. Any number of calls may be under way at once."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._connection: _Connection | None = None
        self._retired: list[_Connection] = []
        self._connecting = asyncio.Lock()

    async def list_tools(self) -> list[Any]:
        """All tools of the server, as ``mcp`` describes them. Raises ``ServerFailure``."""
        connection = await self._connected()
        tools: list[Any] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self.settings.start_timeout):
                for _ in range(_MOST_PAGES):
                    page = await connection.client.list_tools(cursor=cursor)
                    tools += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
        except TimeoutError:
            raise ServerFailure(connection.explain("does not tell its tools in time")) from None
        except Exception as error:  # a foreign server may fail in any way
            raise ServerFailure(connection.explain(f"does not tell its tools: {error}")) from error
        return tools

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """The ``CallToolResult`` of one call.

        ``ServerFailure`` where the server ended or refused the call as such; ``TimeoutError`` where it
        did not answer in time.
        """
        connection = await self._connected()
        try:
            with connection.call():
                async with asyncio.timeout(self.settings.timeout):
                    return await connection.client.call_tool(tool, arguments)
        except TimeoutError:
            text = f"did not answer within {self.settings.timeout:g} seconds"
            if not await connection.answers():
                text += await self._retire(connection)
            raise TimeoutError(connection.explain(text)) from None
        except Exception as error:  # a foreign server may fail in any way
            if await connection.is_lost() or not await connection.answers():
                text = "ended during the call" + await self._retire(connection)
                raise ServerFailure(connection.explain(text)) from error
            raise ServerFailure(connection.explain(f"refused the call: {error}")) from error

    async def _retire(self, connection: _Connection) -> str:
        """Use a connection no more; what to say of it."""
        async with self._connecting:
            if self._connection is connection:
                self._connection = None
                self._retired.append(connection)
            await self._close_idle()
        return "; it is started again at the next one" if connection.is_program else ""

    async def _close_idle(self) -> None:
        """Close retired connections that no call waits for any more; another rollout's may be answered."""
        for connection in [one for one in self._retired if not one.calls]:
            self._retired.remove(connection)
            await connection.close()

    async def close(self) -> None:
        """End the connection, and the server's process with it. Idempotent."""
        async with self._connecting:
            connection, self._connection = self._connection, None
            retired, self._retired = self._retired, []
        for one in [*retired, *([connection] if connection is not None else [])]:
            await one.close()

    async def _connected(self) -> _Connection:
        async with self._connecting:
            await self._close_idle()
            if self._connection is not None and await self._connection.is_lost():
                lost, self._connection = self._connection, None
                await lost.close()
            if self._connection is None:
                connection = _Connection(self.settings)
                await connection.open()
                self._connection = connection
            return self._connection


class _Connection:
    """One session with a server, held by a task."""

    client: Any

    def __init__(self, settings: ServerSettings) -> None:
        self.calls = 0
        """Calls that are under way."""
        self._settings = settings
        self._program = ServerProgram(settings) if settings.command else None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_program(self) -> bool:
        """Whether the server is a program of ours, not one behind an address."""
        return self._program is not None

    @contextmanager
    def call(self) -> Iterator[None]:
        """While a call is under way."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1

    async def answers(self) -> bool:
        """Whether the server still answers at all. One that does not is stuck, or no longer there."""
        try:
            async with asyncio.timeout(_PROBE):
                await self.client.list_tools(cache_mode="bypass")
        except Exception:  # noqa: BLE001 - a foreign server may fail in any way; all of them mean no
            return False
        return True

    async def open(self) -> None:
        """Start the server where it is a program, and agree on the protocol."""
        self._task = asyncio.create_task(self._hold())
        try:
            async with asyncio.timeout(self._settings.start_timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise ServerFailure(self.explain("did not get ready in time")) from None
        except asyncio.CancelledError:
            await self.close()
            raise
        except MissingExtra:
            raise
        except Exception as error:  # a foreign server may fail in any way
            await self.close()
            reason = _innermost(error)
            raise ServerFailure(self.explain(f"cannot be used: {reason}")) from error

    async def is_lost(self) -> bool:
        """Whether the connection is of no more use."""
        if self._program is not None:
            await self._program.settle()
        return self._task is None or self._task.done() or (self._program is not None and self._program.ended)

    async def close(self) -> None:
        """End the session and wait for what belongs to it."""
        self._over.set()
        if self._task is None:
            return
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait([self._task])

    def explain(self, what: str) -> str:
        """An error text with what is known of the server."""
        known = self._program.diagnosis() if self._program is not None else self._settings.url
        return f"the MCP server {self._settings.name!r} {what}" + (f" ({known})" if known else "")

    async def _hold(self) -> None:
        try:
            async with _client(self._settings, self._program) as client:
                self.client = client
                if not self._ready.done():
                    self._ready.set_result(None)
                await self._over.wait()
        except Exception as error:  # noqa: BLE001 - told to whoever waits in open(); later ones show in calls
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            with suppress(asyncio.InvalidStateError):
                self._ready.cancel()


@asynccontextmanager
async def _client(settings: ServerSettings, program: ServerProgram | None) -> AsyncIterator[Any]:
    try:
        # A second of work, and not for the event loop.
        http_client: Any = await asyncio.to_thread(importlib.import_module, "mcp.client.streamable_http")
        from mcp import Client
    except ImportError:
        raise MissingExtra("mcp_servers", "mcp") from None
    if program is not None:
        async with Client(program.streams()) as client:
            yield client
        return
    assert settings.url is not None
    async with http_client.create_mcp_http_client(headers=settings.headers) as http:
        transport = http_client.streamable_http_client(settings.url, http_client=http)
        async with Client(transport) as client:
            yield client


def _innermost(error: BaseException) -> BaseException:
    """What went wrong, out of the groups that it was wrapped in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
