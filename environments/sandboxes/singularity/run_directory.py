"""Where instances of a run keep their files, and how what a dead run left is found and removed.

``${TMPDIR:-/tmp}/hermes-singularity-<uid>/<run>/`` holds one directory per instance, named as the
instance is, and a file that the run keeps locked. The kernel drops the lock with the process; the
next run to start kills the instances of runs without one, and removes their files. The last run to
end removes what all of them share.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from pathlib import Path

from environments.errors import SandboxError
from environments.sandboxes.local.inside.directories import remove_tree
from environments.sandboxes.local.run_directory import is_locked
from environments.sandboxes.shared_directory import SharedDirectory

_LOCK = "lock"


class RunDirectory:
    """The directory of one run, ours as long as we live."""

    def __init__(self, run_id: str) -> None:
        """Make it. ``SandboxError`` where the place is not safe."""
        self._base = _base()
        prefix = re.sub(r"[^A-Za-z0-9_-]", "-", run_id).strip("-")[:40] or "run"
        self.name = f"hermes-{prefix}-{secrets.token_hex(4)}"
        self.path = self._base.path / self.name
        try:
            with self._base.held():  # a run without its own lock is a dead one
                self.path.mkdir(0o700)
                self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX)
        except OSError as error:
            raise SandboxError(f"no directory for sandboxes can be made: {error}") from error

    def leave(self) -> None:
        """Leave it to whoever finds it dead. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Remove it and all in it. Idempotent. Blocking."""
        if self._lock >= 0:
            remove_tree(str(self.path))
            os.close(self._lock)
            self._lock = -1
            self._base.tidy()


def all_runs() -> list[Path]:
    """Directories of runs, living and dead."""
    return _base().runs()


def dead_runs() -> list[Path]:
    """Directories of runs that are no more."""
    base = _base()
    if not base.exists():
        return []
    with base.held():
        return [path for path in base.runs() if not is_locked(path / _LOCK)]


def tidy() -> None:
    """Remove what all runs share where there is none any more. Blocking."""
    _base().tidy()


def _base() -> SharedDirectory:
    return SharedDirectory("hermes-singularity", 0o700)
