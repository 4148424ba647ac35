"""A piece of disk kept back, so that a disk full of groups does not keep the trainer from fetching them.

While the reserve is whole, everything is written. On a full disk it is given away to the small writes that
let groups go, and new groups are refused until there is room for it again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SIZE = 24 << 20
"""Bytes: more than what waits in the log to be copied into the database."""


class Reserve:
    """The file that holds the space."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def take(self) -> bool:
        """Hold the space; False where there is none."""
        with contextlib.suppress(OSError):
            if self.path.stat().st_size >= SIZE:
                return True
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, SIZE)
            finally:
                os.close(descriptor)
        except OSError:
            self.give()
            return False
        return True

    def give(self) -> bool:
        """Let the space go; False where none was held."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True
