"""A directory that all runs of a user share, made by the first of them and removed by the last.

Whoever begins or ends a run, or looks for dead ones, holds the lock in it meanwhile. It is removed
under that lock, and so may be gone, or be another one, when the lock is obtained at last: then the
lock says nothing, and it is tried again.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from environments.errors import SandboxError

_LOCK = ".lock"


class SharedDirectory:
    """``${TMPDIR:-/tmp}/<name>-<uid>``; what runs keep in it are directories. All calls block."""

    def __init__(self, name: str, mode: int, *, shared_files: tuple[str, ...] = ()) -> None:
        """``shared_files`` lie in it besides; processes lock parts of them for as long as they live."""
        self.path = Path(tempfile.gettempdir()) / f"{name}-{os.geteuid()}"
        self._mode = mode
        self._shared_files = shared_files

    @contextmanager
    def held(self) -> Iterator[Path]:
        """Hold it against all other runs, made if missing; it is removed if nothing of a run is in it then.

        ``SandboxError`` where it cannot be made, or others could write to it.
        """
        descriptor = self._acquire()
        try:
            yield self.path
        finally:
            try:
                self._remove_if_unused()
            finally:
                os.close(descriptor)

    def runs(self) -> list[Path]:
        """What runs have in it, without changing anything."""
        try:
            return sorted(path for path in self.path.iterdir() if path.is_dir() and not path.is_symlink())
        except FileNotFoundError:
            return []

    def exists(self) -> bool:
        """Whether there is one."""
        return self.path.is_dir()

    def tidy(self) -> None:
        """Remove it where no run needs it any more. Never raises: the next run to end does it as well."""
        if self.exists():
            with suppress(OSError, SandboxError), self.held():
                pass

    def _acquire(self) -> int:
        while True:
            self._make()
            try:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(self.path / _LOCK, flags, 0o600)
            except FileNotFoundError:  # removed since
                continue
            except OSError as error:
                raise SandboxError(f"no directory for sandboxes can be made: {error}") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if self._is_lock(descriptor):
                    return descriptor
            except BaseException:  # nobody else has the descriptor
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_lock(self, descriptor: int) -> bool:
        """Whether what we have locked is the lock that others will find."""
        try:
            return os.path.samestat(os.fstat(descriptor), os.lstat(self.path / _LOCK))
        except FileNotFoundError:
            return False

    def _make(self) -> None:
        try:
            self.path.mkdir(self._mode)
            self.path.chmod(self._mode)  # whatever the umask is
            return
        except FileExistsError:
            pass
        except FileNotFoundError as error:
            if not self.path.parent.is_dir():
                raise SandboxError(f"no directory for sandboxes can be made: {error}") from error
            return  # removed between the two calls: it is missed, and made, in the next round
        except OSError as error:
            raise SandboxError(f"no directory for sandboxes can be made: {error}") from error
        try:
            status = self.path.lstat()
        except FileNotFoundError:
            return
        others = status.st_mode & (0o022 if self._mode & 0o077 else 0o077)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or others:
            raise SandboxError(f"{self.path} is not a directory that only this user can write to; remove it")

    def _remove_if_unused(self) -> None:
        """Called with the lock held, so that no run can begin meanwhile."""
        own = {_LOCK, *self._shared_files}
        with suppress(OSError):  # somebody's file is in it: then it stays
            if any(path.name not in own for path in self.path.iterdir()):
                return
            if any(_in_use(self.path / name) for name in self._shared_files):
                return
            for name in (*self._shared_files, _LOCK):  # the lock last: with it goes our right to this
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()


def _in_use(path: Path) -> bool:
    """Whether a process has locked a part of the file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
