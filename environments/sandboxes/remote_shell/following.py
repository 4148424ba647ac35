"""Following one program: its input, and its end within bounds."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from environments.sandboxes.arguments import too_large
from environments.sandboxes.remote_shell.machine import Channel, Exit
from environments.sandboxes.remote_shell.output import WholeOutput

_PART = 1 << 17


async def wait(channel: Channel, timeout: float | None) -> Exit | None:
    """How it ended; None if it still runs after ``timeout`` seconds."""
    if timeout is None:
        return await channel.wait()
    try:
        async with asyncio.timeout(max(0.0, timeout)):
            return await channel.wait()
    except TimeoutError:
        return None


async def wait_within_bounds(channel: Channel, output: WholeOutput, path: str) -> Exit:
    """How it ended. ``OSError`` where it printed more than anybody can hold."""
    ending = asyncio.ensure_future(channel.wait())
    overflow = asyncio.ensure_future(output.too_much.wait())
    try:
        await asyncio.wait({ending, overflow}, return_when=asyncio.FIRST_COMPLETED)
        if output.too_much.is_set():
            raise too_large(path, output.most)
        return ending.result()
    finally:
        ending.cancel()
        overflow.cancel()
        await asyncio.gather(ending, overflow, return_exceptions=True)


async def feed(channel: Channel, data: bytes | None, sent: Callable[[int], None] | None = None) -> None:
    """Write all of its input; a program that reads no more has what it wanted."""
    if data is None:
        return
    with contextlib.suppress(BrokenPipeError):
        for start in range(0, len(data), _PART):
            part = data[start : start + _PART]
            await channel.write(part)
            if sent is not None:
                sent(len(part))
        channel.close_stdin()
