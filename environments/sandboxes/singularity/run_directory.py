"""Where instances of a run keep their files, and how what a dead run left is found and removed.

``${TMPDIR:-/tmp}/hermes-singularity-<uid>/<run>/`` holds one directory per instance, named as the
instance is, and a file that the run keeps locked. The kernel drops the lock with the process; the
next run to start kills the instances of runs without one, and removes their files.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path

from environments.errors import SandboxError
from environments.sandboxes.local.inside.directories import remove_tree
from environments.sandboxes.local.run_directory import is_locked, locked

_LOCK = "lock"
_BASE_LOCK = ".lock"
"""Held while a run begins or dead ones are looked for: a run without its own lock is a dead one."""


class RunDirectory:
    """The directory of one run, ours as long as we live."""

    def __init__(self, run_id: str) -> None:
        """Make it. ``SandboxError`` where the place is not safe."""
        base = _base()
        prefix = re.sub(r"[^A-Za-z0-9_-]", "-", run_id).strip("-")[:40] or "run"
        self.name = f"hermes-{prefix}-{secrets.token_hex(4)}"
        self.path = base / self.name
        try:
            with locked(base / _BASE_LOCK):
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


def all_runs() -> list[Path]:
    """Directories of runs, living and dead."""
    return sorted(path for path in _base().iterdir() if path.is_dir())


def dead_runs() -> list[Path]:
    """Directories of runs that are no more."""
    base = _base()
    with locked(base / _BASE_LOCK):
        return [path for path in base.iterdir() if path.is_dir() and not is_locked(path / _LOCK)]


def _base() -> Path:
    path = Path(tempfile.gettempdir()) / f"hermes-singularity-{os.geteuid()}"
    try:
        path.mkdir(0o700, exist_ok=True)
    except OSError as error:
        raise SandboxError(f"no directory for sandboxes can be made: {error}") from error
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise SandboxError(f"{path} is not a directory that only this user can use; remove it")
    return path
