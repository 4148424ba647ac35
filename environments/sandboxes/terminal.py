"""A shell in a sandbox, at the user's own terminal or between pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from environments.errors import SandboxError
from environments.sandboxes.base import Process, Sandbox

_SHELL = "if command -v bash >/dev/null 2>&1; then exec bash -i; else exec sh -i; fi"
_QUICK, _SLOW = 0.01, 0.08
"""Pauses between two looks at the output, while there is some and after a while without any."""

_PART = 1 << 16


async def attend(sandbox: Sandbox, command: Sequence[str]) -> int:
    """Run a shell, or ``command``, with our own standard streams; its exit code.

    On a terminal the sandbox gets one too; else input is passed on to its end.
    """
    interactive = os.isatty(0) and os.isatty(1)
    text = shlex.join(command) if command else _SHELL
    if not interactive:
        process = await sandbox.spawn(
            text if command else "if command -v bash >/dev/null; then exec bash; else exec sh; fi"
        )
        return await _pass_on(process)
    rows, columns = _size()
    mark = f"{sandbox.scratch}/terminal-{os.getpid()}"
    start = f"stty rows {rows} cols {columns} 2>/dev/null; tty >{shlex.quote(mark)} 2>/dev/null; {text}"
    process = await sandbox.spawn(start, env={"TERM": os.environ.get("TERM", "xterm")}, pty=True)

    async def resize() -> None:
        rows, columns = _size()
        with contextlib.suppress(SandboxError):  # the shell goes on at its old size
            await sandbox.exec(f'stty rows {rows} cols {columns} <"$(cat {shlex.quote(mark)})"', timeout=10)

    with _raw_terminal(), _on_resize(resize):
        return await _pass_on(process)


async def _pass_on(process: Process) -> int:
    """Pass input and output on until the process has ended and all its output is written."""
    feeding = asyncio.ensure_future(_feed(process))
    pause = _QUICK
    try:
        while True:
            code = await process.wait(pause)
            output = await process.read()
            await asyncio.to_thread(_write, output)
            if code is not None and not output:
                return code
            pause = _QUICK if output else min(pause * 1.3, _SLOW)
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        if process.exit_code is None:
            await process.kill()


async def _feed(process: Process) -> None:
    """Pass our input on. A reader is added to the loop where that works, which a regular file forbids."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(0, ready.set)
    except OSError:
        ready.set()
        watched = False
    else:
        watched = True
    try:
        while True:
            await ready.wait()
            if watched:
                ready.clear()
                if not select.select([0], [], [], 0)[0]:  # what had come is read already: this would block
                    continue
            data = os.read(0, _PART)
            if not data:
                break
            await process.write(data)
    except OSError:  # the process has ended, or the terminal is gone
        return
    finally:
        if watched:
            loop.remove_reader(0)
    await process.close_stdin()


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _size() -> tuple[int, int]:
    size = os.get_terminal_size(1)
    return size.lines or 24, size.columns or 80


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Have every key go to the sandbox."""
    import termios
    import tty

    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is kept
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stdout.flush()


@contextlib.contextmanager
def _on_resize(resize: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    def start() -> None:
        task = loop.create_task(resize())
        running.add(task)
        task.add_done_callback(running.discard)

    loop.add_signal_handler(signal.SIGWINCH, start)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
