"""Where the sandboxes of a run live on disk, and how what a dead run left is found and removed.

``${TMPDIR:-/tmp}/hermes-environments-<uid>/<run>/`` holds one directory per sandbox and a file that
the run keeps locked. The kernel drops the lock with the process, however it ends; the next run to
start removes what is no longer locked. The last run to end removes what all of them share.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from environments.sandboxes.local.inside import remains
from environments.sandboxes.local.inside.directories import remove_tree
from environments.sandboxes.shared_directory import SharedDirectory

_LOCK = "lock"
_DEAD = ".dead-"
_PATIENCE = 20.0
_USER_IDS = "user-ids"


class RunDirectory:
    """The directory of one run, ours as long as we live. Blocking: call it in a thread."""

    def __init__(self, run_id: str) -> None:
        """Reap dead runs, then make the directory. ``SandboxError`` where the place is not safe."""
        prefix = re.sub(r"[^A-Za-z0-9_.-]", "-", run_id).lstrip(".")[:80] or "run"
        self._base = _base()
        self.user_ids = self._base.path / _USER_IDS
        with self._base.held() as base:
            dead = _set_aside_dead_runs(base)
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=base))
            self.path.chmod(0o711)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        for path in dead:
            _remove_run(path)

    @property
    def lock(self) -> int:
        """Descriptor whose copies keep the run alive, wherever they are held."""
        return self._lock

    def leave(self) -> None:
        """Leave the directory to those who hold copies of the lock. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove(self) -> None:
        """Remove the directory and all in it. Idempotent."""
        if self._lock >= 0:
            _remove_run(self.path)
            os.close(self._lock)
            self._lock = -1
            self._base.tidy()


def reap() -> None:
    """Remove what dead runs left, if any run ever was."""
    shared = _base()
    if not shared.exists():
        return
    with shared.held() as base:
        dead = _set_aside_dead_runs(base)
    for path in dead:
        _remove_run(path)
    if dead:
        shared.tidy()


def sandbox_directories() -> list[tuple[Path, bool]]:
    """The directory of every sandbox of any run, and whether its run lives."""
    found: list[tuple[Path, bool]] = []
    for run in _base().runs():
        alive = not run.name.startswith(_DEAD) and is_locked(run / _LOCK)
        with suppress(FileNotFoundError):  # its run ends just now
            paths = [path for path in sorted(run.iterdir()) if not path.name.startswith(".")]
            found += [(path, alive) for path in paths if path.is_dir()]
    return found


def _base() -> SharedDirectory:
    """The directory of all our runs; only we may write to it, others may at most pass through."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    return SharedDirectory("hermes-environments", mode, shared_files=(_USER_IDS,))


def _set_aside_dead_runs(base: Path) -> list[Path]:
    """Rename the directories of dead runs, so that nobody else cares for them; returns them."""
    dead: list[Path] = []
    for path in base.iterdir():
        if not path.is_dir() or path.is_symlink():
            continue
        if path.name.startswith(_DEAD):  # whoever removed it died too, or still is at it
            dead.append(path)
        elif not is_locked(path / _LOCK):
            aside = base / f"{_DEAD}{path.name}"
            with suppress(FileNotFoundError):  # it was not dead but about to end, and has
                path.rename(aside)
                dead.append(aside)
    return dead


def is_locked(path: Path) -> bool:
    """Whether the run that made this lock file still lives; False where there is no file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _remove_run(path: Path) -> None:
    """Remove a run's directory and the control groups of its sandboxes.

    What a sandbox of a dead guardian still runs is in its groups, and killed with them. The guardians
    of a run that has just died are at the same work: it is tried again until one of us is done. Where
    something cannot be removed at all, the next start tries again.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            sandboxes = [str(entry.parent) for entry in path.glob(remains.note("*"))]
            if not [sandbox for sandbox in sandboxes if not remains.remove(sandbox)]:
                remove_tree(str(path))
                return
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY):
                return
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)
