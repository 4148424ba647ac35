"""Streaming tar archives into and out of a local sandbox, by the ``tar`` program inside it."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

from environments.sandboxes.base import file_error
from environments.sandboxes.local.inside import wire

if TYPE_CHECKING:
    from environments.sandboxes.base import ExecResult
    from environments.sandboxes.local.sandbox import LocalSandbox

_CHUNK = 1 << 18


async def unpack(sandbox: LocalSandbox, stream: AsyncIterator[bytes], directory: str) -> None:
    """Unpack ``stream`` into an existing directory. ``OSError`` where tar cannot."""
    request = await sandbox.tar_request(["tar", "-x", "-p", "-o", "-f", "-", "-C", directory], stdin=True)
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write, False)
    theirs = [read]
    running = asyncio.ensure_future(sandbox.run_to_end(request, theirs, None))
    try:
        try:
            await _feed(write, stream, running)
        finally:
            os.close(write)
        result = await running
    finally:
        await _end(running, theirs)
    _check(result, directory)


async def pack(sandbox: LocalSandbox, path: str) -> AsyncGenerator[bytes, None]:
    """Pack an absolute path; names in the archive are relative to its parent."""
    parent, name = posixpath.split(path)
    command = ["tar", "-c", "-f", "-", "-C", parent or "/", "--", name or "."]
    request = await sandbox.tar_request(command, stdin=False)
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)
    theirs = [write]
    running = asyncio.ensure_future(sandbox.run_to_end(request, theirs, None))
    try:
        while chunk := await _next_chunk(read):
            yield chunk
        _check(await running, path)
    finally:
        os.close(read)
        await _end(running, theirs)


async def _end(running: asyncio.Future[ExecResult], theirs: list[int]) -> None:
    """See a run to its end, which is now if it has not come yet, and take its descriptors back.

    They are the run's until then, even if it has not had its first step; afterwards the list is
    empty, unless that step never came.
    """
    running.cancel()
    try:
        await asyncio.gather(running, return_exceptions=True)
    finally:
        wire.close_all(theirs)


async def _feed(write: int, stream: AsyncIterator[bytes], running: asyncio.Future[ExecResult]) -> None:
    async for chunk in stream:
        view = memoryview(chunk)
        while view:
            try:
                view = view[os.write(write, view[:_CHUNK]) :]
            except BlockingIOError:
                await _ready(write, writing=True, unless=running)
            except BrokenPipeError:  # tar has ended; its exit code says why
                return
            if running.done():
                return


async def _next_chunk(read: int) -> bytes:
    while True:
        try:
            return os.read(read, _CHUNK)
        except BlockingIOError:
            await _ready(read, writing=False)


async def _ready(descriptor: int, *, writing: bool, unless: asyncio.Future[ExecResult] | None = None) -> None:
    """Wait until a pipe can be used, or until the program at its other end is done."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(descriptor, _set, ready)
    try:
        awaited: set[asyncio.Future[Any]] = {ready} if unless is None else {ready, unless}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        remove(descriptor)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _check(result: ExecResult, path: str) -> None:
    """Exit code 1 of tar means that a file changed while it was read, which a live tree may do."""
    text = result.stderr.decode("utf-8", "replace").strip()
    if result.exit_code == 0 or (result.exit_code == 1 and "changed as we read it" in text):
        return
    number = errno.EACCES if "Permission denied" in text else errno.EIO
    if "No space left" in text:
        number = errno.ENOSPC
    raise file_error(number, f"tar failed with exit code {result.exit_code}: {text[-500:]}", path)
