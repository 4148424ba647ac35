"""Counting a test's processes on the whole host, whatever isolation hides or shows."""

from __future__ import annotations

import random
import subprocess


def new_duration() -> int:
    """Seconds for a ``sleep`` that no other test, nor another run of this one, counts as its own."""
    return random.SystemRandom().randrange(100_000, 10_000_000)


def count(seconds: int) -> int:
    """How many living ``sleep`` processes of that length the host has."""
    host = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True)
    lines = [line.split(None, 1) for line in host.stdout.splitlines()]
    return sum(1 for stat, args in lines if not stat.startswith("Z") and args == f"sleep {seconds}")
