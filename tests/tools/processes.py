"""Watching processes that are not children of the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def alive(process: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], object]) -> bool:
    """Whether something becomes so within 30 seconds."""
    for _ in range(600):
        if condition():
            return True
        time.sleep(0.05)
    return False
