"""Text for people: hostile characters made harmless, numbers and durations made short."""

from __future__ import annotations

from environments.terminal_text import harmless

__all__ = ["count", "duration", "harmless", "one_line", "score", "shorten"]


def one_line(text: str, width: int = 80) -> str:
    """The text on one line of at most ``width`` characters, harmless."""
    line = " ".join(harmless(text[: 8 * width]).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def shorten(text: str, limit: int) -> str:
    """The first 40 % and the last 60 % of a long text, with a note of what is missing."""
    if len(text) <= limit:
        return text
    head = limit * 2 // 5
    tail = limit - head
    return f"{text[:head]}\n… {len(text) - limit:,} characters left out …\n{text[len(text) - tail :]}"


def duration(seconds: float | None) -> str:
    """Seconds as ``0.4s``, ``12s``, ``3m05s`` or ``2h07m``."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def count(number: float) -> str:
    """A number as ``950``, ``12.3k`` or ``4.5M``."""
    for limit, unit in ((999_950_000, "G"), (999_950, "M"), (9_999, "k")):
        if abs(number) > limit:
            return f"{number / {'G': 1e9, 'M': 1e6, 'k': 1e3}[unit]:.1f}{unit}"
    return f"{number:,.0f}"


def score(value: float | None) -> str:
    """A reward or rate with up to three digits, ``-`` for none."""
    if value is None:
        return "-"
    return f"{value:.3f}".rstrip("0").rstrip(".") if abs(value) < 1e6 else f"{value:.3g}"
