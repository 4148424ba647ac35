"""Which numbers count: those that people write, and those that rewards and metrics may be."""

from __future__ import annotations

from typing import Any

LARGEST_NUMBER = 1e100
"""Largest reward or metric; of much larger ones no sum or variance would be finite."""


def plain_number(text: str) -> float:
    """A number as people write it. Raises ``ValueError`` for what only Python takes for one: underscores
    between digits, and digits of other scripts.
    """
    if not text.isascii() or "_" in text:
        raise ValueError(f"{text!r} is no number: the digits are 0 to 9, and nothing stands between them")
    return float(text)


def is_finite_number(value: Any) -> bool:
    """Whether a value is a real number that sums can hold (booleans count, as 0 and 1)."""
    return isinstance(value, int | float) and -LARGEST_NUMBER <= value <= LARGEST_NUMBER
