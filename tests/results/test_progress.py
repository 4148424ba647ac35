"""Progress without a terminal, with one, and with nobody listening."""

from __future__ import annotations

import io
import sys

import pytest

from environments.results.progress import Progress, Snapshot
from environments.results.text import count, duration, harmless, one_line, score, shorten


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plain(total: int | None = 100, **options: object) -> tuple[Progress, io.StringIO, Clock]:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(total, mode="plain", title="toy", stream=stream, clock=clock, **options)  # type: ignore[arg-type]
    progress.start()
    return progress, stream, clock


def test_lines_come_after_a_second_and_then_ever_more_rarely() -> None:
    progress, stream, clock = plain(None)
    times = []
    for tick in range(4000):
        clock.now = 100 + tick / 4
        before = stream.tell()
        progress.update(Snapshot(done=tick))
        if stream.tell() > before:
            times.append(clock.now - 100)
    assert times[:7] == [1, 3, 7, 15, 31, 63, 123]
    assert times[-1] - times[-2] == 60


def test_a_line_says_where_the_run_stands() -> None:
    progress, stream, clock = plain(done_before=10)
    clock.now += 20
    progress.update(Snapshot(50, 8, 3, 0.25, 123_456, {"model_error": 2, "sandbox_error": 1}))
    assert stream.getvalue() == (
        "toy: 50/100 done (50%), 8 running, 3 failed (model_error 2, sandbox_error 1), mean reward 0.25, "
        "2.0/s, 123.5k tokens, 20s so far, 25s left\n"
    )
    progress.update(Snapshot(100, 0, 0, 1.0))
    progress.finish()
    progress.finish()
    assert stream.getvalue().splitlines()[1:] == ["toy: 100 done in 20s, 10 of them earlier, mean reward 1"]


def test_the_time_left_may_be_unknown_or_given() -> None:
    progress, _, clock = plain(None)
    assert progress.rate() is None and progress.time_left() is None
    clock.now += 10
    progress.update(Snapshot(5, rate=2.0, time_left=7.0))
    assert progress.rate() == 2.0 and progress.time_left() == 7.0


def test_notes_are_harmless_and_none_is_silent() -> None:
    progress, stream, _ = plain()
    progress.note("evil \x1b[2J [bold]")
    assert stream.getvalue() == "evil \\x1b[2J [bold]\n"
    stream = io.StringIO()
    quiet = Progress(3, mode="none", stream=stream)
    quiet.start()
    quiet.update(Snapshot(1))
    quiet.finish()
    assert stream.getvalue() == ""
    assert Progress(3, stream=stream)._mode == "plain"


def test_a_closed_stream_does_not_end_the_run() -> None:
    progress, stream, clock = plain()
    stream.close()
    clock.now += 5
    progress.update(Snapshot(1))
    progress.note("x")
    progress.finish()


def test_the_live_display(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = Progress(4, title="toy", stream=stream, clock=Clock())
    progress.start()
    progress.update(Snapshot(1, 2, mean_reward=0.5))
    progress.note("a note [red]")
    progress.finish()
    shown = stream.getvalue()
    assert "a note [red]" in shown and "toy: 1/4 done" in shown
    assert shown.endswith("toy: 1 of 4 done in 0.0s, mean reward 0.5\n")


def test_texts_for_people() -> None:
    assert [duration(s) for s in (None, 0.44, 12, 59.7, 185, 7620)] == [
        "-",
        "0.4s",
        "12s",
        "1m00s",
        "3m05s",
        "2h07m",
    ]
    assert [count(n) for n in (0, 950, 9_999, 12_345, 999_949, 4_500_000)] == [
        "0", "950", "9,999", "12.3k", "999.9k", "4.5M",
    ]  # fmt: skip
    assert [score(v) for v in (None, 1.0, 0.12345, 0.0, -2.5)] == ["-", "1", "0.123", "0", "-2.5"]
    assert harmless("a\r\nb\tc\x07\u202e") == "a\nb\tc\\x07\\u202e"
    assert one_line("a\n b" * 100, 10) == "a ba ba b…"
    assert shorten("x" * 10, 10) == "x" * 10
    assert shorten("a" * 50 + "b" * 50, 10) == "aaaa\n… 90 characters left out …\nbbbbbb"


def test_without_a_standard_error_nothing_is_shown_and_nothing_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    progress = Progress(2)
    progress.start()
    progress.update(Snapshot(done=1))
    progress.note("a note")
    progress.finish()
