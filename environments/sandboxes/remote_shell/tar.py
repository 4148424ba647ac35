"""Tar streams into and out of a program's channel, each side at the pace of the other."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from environments.sandboxes.local.inside.output import CappedOutput
from environments.sandboxes.remote_shell import files
from environments.sandboxes.remote_shell.attention import Attention
from environments.sandboxes.remote_shell.machine import Channel, Exit

_PART = 1 << 17
_ENOUGH = 8 << 20
"""Bytes that may wait for a slow reader before the sender is stopped."""


class ChunkQueue:
    """A receiver whose stdout is read as chunks, and which stops the program when they pile up."""

    def __init__(self) -> None:
        self._chunks: deque[bytes] = deque()
        self._waiting = 0
        self._news = asyncio.Event()
        self._stderr = CappedOutput(65536)
        self._channel: Channel | None = None

    @property
    def stderr(self) -> bytes:
        """Standard error so far."""
        return self._stderr.value()

    def receive(self, stream: int, data: bytes) -> None:
        """Take output of stream 1 or 2."""
        if stream == 2:
            self._stderr.add(data)
            return
        self._chunks.append(bytes(data))
        self._waiting += len(data)
        if self._waiting > _ENOUGH and self._channel is not None:
            self._channel.pause()
        self._news.set()

    async def chunks(self, channel: Channel, attention: Attention) -> AsyncGenerator[bytes, None]:
        """Everything on stdout until the program of ``channel`` has ended."""
        self._channel = channel
        ending = asyncio.ensure_future(channel.wait())
        ending.add_done_callback(lambda _: self._news.set())
        try:
            while True:
                while self._chunks:
                    chunk = self._chunks.popleft()
                    self._waiting -= len(chunk)
                    yield chunk
                channel.resume()
                if ending.done():
                    return
                self._news.clear()
                await attention.until(channel, self._news.wait())
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)


async def send(channel: Channel, attention: Attention, stream: AsyncIterator[bytes]) -> Exit:
    """Write a stream to a program and wait for its end; what it does not read any more is left."""
    with contextlib.suppress(BrokenPipeError):
        async for chunk in stream:
            for start in range(0, len(chunk), _PART):
                await attention.until(channel, channel.write(chunk[start : start + _PART]))
        channel.close_stdin()
    return await attention.until(channel, channel.wait())


def check(ended: Exit, message: bytes, path: str) -> None:
    """Raise the ``OSError`` that tar's end means.

    Exit code 1 of GNU tar means that a file changed while it was read, which a live tree may do.
    """
    if ended.code == 0 or (ended.code == 1 and b"changed as we read it" in message):
        return
    error = files.error_of(ended.code, message, path)
    if error.errno == errno.EIO:
        text = message.decode("utf-8", "replace").strip()
        error = OSError(errno.EIO, f"tar failed with exit code {ended.code}: {text[-500:]}", path)
    raise error
