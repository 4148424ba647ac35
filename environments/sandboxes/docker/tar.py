"""Trees as tar streams: by the container's own ``tar``, or by the engine where the image has none."""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from environments.sandboxes.docker.containers import Container
from environments.sandboxes.docker.execution import STDOUT, Execution
from environments.sandboxes.docker.files import Outcome, check_tar
from environments.sandboxes.docker.scripts import shell_command
from environments.sandboxes.local.inside.output import CappedOutput

if TYPE_CHECKING:
    from environments.sandboxes.docker.commands import Commands

_UNPACK = 'echo "$$" >&2; exec tar -x -p -o -f - -C "$1"'
_PACK = 'echo "$$" >&2; [ -e "$1/$2" ] || [ -L "$1/$2" ] || exit 81; exec tar -c -f - -C "$1" -- "$2"'
_QUEUE = 16
_MESSAGE = 20_000


async def unpack(
    commands: Commands, container: Container, stream: AsyncIterator[bytes], directory: str
) -> None:
    """Unpack ``stream`` into an existing directory. ``OSError`` where tar cannot."""
    if not container.has_tar or not commands.can_end_input:
        await container.put_archive(stream, directory)
        return

    async def feed(execution: Execution) -> None:
        async for chunk in stream:
            try:
                await execution.send(chunk)
            except ConnectionError:  # tar has ended; its exit code says why
                return
        with contextlib.suppress(ConnectionError):
            execution.end_input()

    output = _Messages()
    code = await commands.attend_program(shell_command(_UNPACK, directory), output, feed)
    check_tar(Outcome(code, b"", output.err.value()), directory)


async def pack(commands: Commands, container: Container, path: str) -> AsyncIterator[bytes]:
    """Pack an absolute path; names in the archive are relative to its parent."""
    if not container.has_tar:
        async with contextlib.aclosing(container.get_archive(path)) as parts:
            async for part in parts:
                yield part
        return
    parent, name = posixpath.split(posixpath.normpath(path))
    output = _Queue()
    running = asyncio.ensure_future(
        commands.attend_program(shell_command(_PACK, parent or "/", name or "."), output, None)
    )
    running.add_done_callback(lambda _: output.finish())
    try:
        while (chunk := await output.next()) is not None:
            yield chunk
        check_tar(Outcome(await running, b"", output.err.value()), path)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


class _Messages:
    """Keeps what tar says."""

    def __init__(self) -> None:
        self.err = CappedOutput(_MESSAGE)

    async def read(self, execution: Execution) -> None:
        async for _, data in execution.chunks():
            self.err.add(data)


class _Queue(_Messages):
    """Hands standard output on; the engine is not read while the consumer is behind."""

    def __init__(self) -> None:
        super().__init__()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE)
        self._finished = asyncio.Event()

    async def read(self, execution: Execution) -> None:
        async for stream, data in execution.chunks():
            if stream == STDOUT:
                await self._chunks.put(data)
            else:
                self.err.add(data)

    def finish(self) -> None:
        self._finished.set()

    async def next(self) -> bytes | None:
        """The next chunk; None at the end."""
        if self._chunks.empty() and not self._finished.is_set():
            getting = asyncio.ensure_future(self._chunks.get())
            ending = asyncio.ensure_future(self._finished.wait())
            try:
                await asyncio.wait({getting, ending}, return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    return getting.result()
            finally:
                getting.cancel()
                ending.cancel()
        return None if self._chunks.empty() else self._chunks.get_nowait()
