"""Finds user code that blocks the event loop, and names it.

A thread looks a few times a second whether the loop has ticked. Where it has not for a while, the
main thread's stack tells which line holds it up; the innermost line outside the standard library and
this package is the one to blame.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

TICK = 0.2
"""Seconds between two ticks of the loop: rare enough to cost nothing."""

THRESHOLD = 1.0
"""Seconds without a tick that are worth a warning; model and sandbox calls notice far less."""


@contextmanager
def lag_monitor(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Watch the loop while the block runs."""
    monitor = _Monitor(loop, threading.get_ident())
    monitor.start()
    try:
        yield
    finally:
        monitor.stop()


class _Monitor:
    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self.loop, self.thread_id = loop, thread_id
        self.last_tick = time.monotonic()
        self.stopped = threading.Event()
        self.named: set[str] = set()

    def start(self) -> None:
        self.loop.call_soon(self._tick)
        threading.Thread(target=self._watch, name="lag-monitor", daemon=True).start()

    def stop(self) -> None:
        self.stopped.set()

    def _tick(self) -> None:
        self.last_tick = time.monotonic()
        if not self.stopped.is_set():
            self.loop.call_later(TICK, self._tick)

    def _watch(self) -> None:
        while not self.stopped.wait(TICK):
            lag = time.monotonic() - self.last_tick
            if lag < THRESHOLD:
                continue
            frame = sys._current_frames().get(self.thread_id)
            if frame is None:
                continue
            culprit = blamed_line(traceback.extract_stack(frame))
            if culprit not in self.named:
                self.named.add(culprit)
                logger.warning(
                    "the event loop has been blocked for %.1f s by %s; all rollouts wait for it "
                    "(use await, ctx calls, or asyncio.to_thread)",
                    lag,
                    culprit,
                )


def blamed_line(stack: traceback.StackSummary) -> str:
    """``file:line in function`` of the innermost frame that is neither ours nor Python's own."""
    own = str(Path(__file__).parent)
    standard = sysconfig.get_paths()["stdlib"]
    foreign = [
        frame
        for frame in stack
        if not frame.filename.startswith(("<", standard)) and _is_environment_code(frame.filename, own)
    ]
    frame = (foreign or list(stack))[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}"


def _is_environment_code(filename: str, own: str) -> bool:
    return not filename.startswith(own) or filename.endswith("_env.py")
