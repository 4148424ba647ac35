"""Temporary directories that do not outlive a killed process for ever: the next one removes them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_LOCK = ".owner"
_GRACE = 60.0
"""Seconds in which a directory may be made and not yet be locked by its owner."""


@contextlib.contextmanager
def scratch_directory(prefix: str) -> Iterator[str]:
    """A temporary directory whose name begins with ``prefix``; removed at the end.

    Those of this name that a process of the same user left when it was killed are removed first. Which are
    in use tells a lock that ends with its holder.
    """
    _remove_abandoned(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as directory, (Path(directory) / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory


def _remove_abandoned(prefix: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # in use (its lock is held), another user's, or gone meanwhile
            found = path.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _GRACE:
                continue
            with (path / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
