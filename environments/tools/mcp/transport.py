"""The line to an MCP server that is a program: JSON-RPC messages over its standard input and output.

The program is ``guarded``: nothing of it outlives us. What it prints that is no
message is passed over and remembered, as is the end of what it says on standard error: errors quote them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from environments.tools.guarded import Tail, end_guarded, start_guarded
from environments.tools.mcp.settings import ServerSettings

MESSAGE_LIMIT = 32 * 1024 * 1024
"""Bytes of one message; a server that prints more without a line end is not speaking MCP."""

_SAMPLE = 80
_SETTLING = 3.0


class ServerProgram:
    """A server's process. ``diagnosis`` tells what is known of its end and of what it printed."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._tail = Tail()
        self._unreadable = False
        self._garbage = 0
        self._last_garbage = b""

    @property
    def ended(self) -> bool:
        """Whether it no longer runs, has closed its output, or prints what cannot be read on."""
        process = self._process
        if process is None or process.returncode is not None or self._unreadable:
            return True
        return process.stdout is not None and process.stdout.at_eof()

    async def settle(self) -> None:
        """Where its end is on the way, wait until all is known of it."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        gone = process.stdout is not None and process.stdout.at_eof()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _SETTLING if gone else 0.05)

    def diagnosis(self) -> str:
        """For an error text: exit code, what was no message, the last lines of standard error."""
        parts = []
        if self._process is not None and self._process.returncode is not None:
            parts.append(f"exit code {self._process.returncode}")
        if self._garbage:
            sample = self._last_garbage.decode("utf-8", "replace")
            parts.append(f"it printed {self._garbage} lines that are no MCP messages, such as {sample!r}")
        if said := self._tail.quote():
            parts.append(f"on standard error: {said}")
        return "; ".join(parts)

    @asynccontextmanager
    async def streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Start it; the streams that the ``mcp`` package speaks over. The end of the block ends it."""
        import anyio

        process = self._process = await start_guarded(
            self._settings.command, env=self._settings.env, cwd=self._settings.cwd, limit=MESSAGE_LIMIT
        )
        incoming, read_stream = anyio.create_memory_object_stream[Any](0)
        write_stream, outgoing = anyio.create_memory_object_stream[Any](0)
        tasks = [
            asyncio.create_task(self._read(process, incoming)),
            asyncio.create_task(self._write(process, outgoing, incoming)),
            asyncio.create_task(self._tail.listen(process)),
        ]
        try:
            yield read_stream, write_stream
        finally:
            try:
                await asyncio.shield(asyncio.ensure_future(end_guarded(process)))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for stream in (incoming, read_stream, write_stream, outgoing):
                    stream.close()

    async def _read(self, process: asyncio.subprocess.Process, incoming: Any) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        assert process.stdout is not None
        with incoming:
            while True:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    self._unreadable = True
                    self._note(b"a line without end")
                    while await process.stdout.read(65536):  # until it is ended, which is soon
                        pass
                    return
                if not line:
                    return
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    if line.strip():
                        self._note(line)
                    continue
                await incoming.send(SessionMessage(message))

    def _note(self, line: bytes) -> None:
        self._garbage += 1
        self._last_garbage = line.strip()[:_SAMPLE]

    async def _write(self, process: asyncio.subprocess.Process, outgoing: Any, incoming: Any) -> None:
        assert process.stdin is not None
        async for item in outgoing:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()
            except (BrokenPipeError, ConnectionResetError):
                incoming.close()  # the session sees that the connection is gone
                return
