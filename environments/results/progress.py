"""How a run is getting on: a live display on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

from environments.results.text import count, duration, harmless, score

Mode = Literal["auto", "live", "plain", "none"]

FIRST_LINE = 1.0
"""Seconds until the first plain line."""

LONGEST_INTERVAL = 60.0
"""Plain lines come after 1, 2, 4, ... seconds, and at least this often later."""


@dataclass(slots=True)
class Snapshot:
    """Where a run stands. ``rate`` (per second) and ``time_left`` are worked out where not given."""

    done: int = 0
    running: int = 0
    failed: int = 0
    mean_reward: float | None = None
    tokens: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    """Failures by kind, retried ones included."""
    rate: float | None = None
    time_left: float | None = None


class Progress:
    """Shows a run's progress on standard error. ``update`` is cheap; call it several times a second.

    ``total`` is how many there will be, None where nobody knows. ``done_before`` were done by an
    earlier run and count neither for the rate nor for the time left.
    """

    def __init__(
        self,
        total: int | None,
        *,
        mode: Mode = "auto",
        title: str = "",
        done_before: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.title = harmless(title)
        self._stream: TextIO | None = stream if stream is not None else sys.stderr
        """None where the program was started with standard error closed."""
        self._mode = _resolve(mode, self._stream)
        self._done_before = done_before
        self._clock = clock
        self._started_at = clock()
        self._snapshot = Snapshot(done=done_before)
        self._interval = FIRST_LINE
        self._next_line = self._started_at + FIRST_LINE
        self._live: Any = None
        self._finished = False

    def start(self) -> None:
        """Begin to show and to measure time."""
        self._started_at = self._clock()
        self._next_line = self._started_at + FIRST_LINE
        if self._mode == "live":
            self._live = self._make_live()
            self._live.start()

    def update(self, snapshot: Snapshot) -> None:
        """Show a new state, now or when the next line is due."""
        self._snapshot = snapshot
        now = self._clock()
        if self._mode == "plain" and now >= self._next_line:
            self._write(self.line())
            self._interval = min(LONGEST_INTERVAL, self._interval * 2)
            self._next_line = now + self._interval

    def note(self, text: str) -> None:
        """Show a message of one or more lines; with ``none`` too, as it matters."""
        text = harmless(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._write(text)

    def finish(self) -> None:
        """Take the display away and print a summary. Idempotent."""
        if self._finished:
            return
        self._finished = True
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._mode != "none":
            self._write(self.summary())

    def line(self) -> str:
        """The present state on one line."""
        state = self._snapshot
        parts = [f"{state.done}/{self.total}" if self.total is not None else f"{state.done}", "done"]
        if self.total:
            parts.append(f"({100 * state.done // self.total}%)")
        text = f"{self.title}: " if self.title else ""
        text += " ".join(parts)
        details = [
            f"{state.running} running" if state.running else "",
            self._failures(),
            f"mean reward {score(state.mean_reward)}" if state.mean_reward is not None else "",
            _rate(self.rate()),
            f"{count(state.tokens)} tokens" if state.tokens else "",
            f"{duration(self._elapsed())} so far",
            f"{duration(self.time_left())} left" if self.time_left() is not None else "",
        ]
        return ", ".join([text, *filter(None, details)])

    def summary(self) -> str:
        """What has been done, for the end."""
        state = self._snapshot
        of = f" of {self.total}" if self.total is not None and state.done != self.total else ""
        details = [
            f"{self.title + ': ' if self.title else ''}{state.done}{of} done in {duration(self._elapsed())}",
            f"{self._done_before} of them earlier" if self._done_before else "",
            self._failures(),
            f"mean reward {score(state.mean_reward)}" if state.mean_reward is not None else "",
            f"{count(state.tokens)} tokens" if state.tokens else "",
        ]
        return ", ".join(filter(None, details))

    def rate(self) -> float | None:
        """Completions per second of this run."""
        if self._snapshot.rate is not None:
            return self._snapshot.rate
        new, elapsed = self._snapshot.done - self._done_before, self._elapsed()
        return new / elapsed if new > 0 and elapsed > 0 else None

    def time_left(self) -> float | None:
        """Seconds until the end at this rate, None where it cannot be known."""
        if self._snapshot.time_left is not None:
            return self._snapshot.time_left
        rate = self.rate()
        if rate is None or self.total is None:
            return None
        return max(0, self.total - self._snapshot.done) / rate

    def _elapsed(self) -> float:
        return max(0.0, self._clock() - self._started_at)

    def _failures(self) -> str:
        state = self._snapshot
        kinds = ", ".join(f"{name} {number}" for name, number in sorted(state.errors.items()))
        if state.failed:
            retried = "with retried ones: " if sum(state.errors.values()) > state.failed else ""
            return f"{state.failed} failed" + (f" ({retried}{kinds})" if kinds else "")
        return f"errors: {kinds}" if kinds else ""

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._mode = "none"  # nobody is reading any more; the run goes on

    def _make_live(self) -> Any:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=self._stream)
        return Live(
            get_renderable=self._renderable,
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=self._stream is sys.stderr,
        )

    def _renderable(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        display = Table.grid(expand=True)
        display.add_row(
            ProgressBar(total=self.total, completed=self._snapshot.done, pulse=self.total is None)
        )
        display.add_row(Text(self.line(), overflow="fold"))
        return display


def _resolve(mode: Mode, stream: TextIO | None) -> Literal["live", "plain", "none"]:
    if stream is None:
        return "none"
    if mode != "auto":
        return mode
    terminal = stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    return "live" if terminal else "plain"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    if rate >= 1:
        return f"{rate:.1f}/s"
    return f"{rate * 60:.1f}/min" if rate * 60 >= 1 else f"{rate * 3600:.1f}/h"
