"""Unpacking a tar stream from a sandbox on this machine, which trusts nothing in it."""

from __future__ import annotations

import errno
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import IO

DEFAULT_MAX_BYTES = 8 << 30
_MAX_ENTRIES = 1_000_000
_MAX_DEPTH = 256
"""Levels of directories: who walks a tree by recursion, as Python's own library does, copes with these."""
_MAX_HEADER = 4 << 20
"""Bytes that may describe one entry: tarfile keeps them in memory."""
_CHUNK = 1 << 20
_STOP = (".", "")


class Extraction:
    """Unpacks one stream below ``target``.

    Stricter than the ``data`` filter of ``tarfile``: besides names and links that lead out, devices
    and special permissions, it bounds bytes, entries, levels and what describes an entry, and writes
    through no link at all, not even one that was there before.
    """

    def __init__(self, target: Path, *, strip: int = 0, max_bytes: int, refused: list[str] | None) -> None:
        """``strip`` is how many leading components every name loses.

        ``refused`` takes the names of what is left out; where it is None, that is an error.
        """
        self._strip = strip
        self._target = target
        self._max_bytes = max_bytes
        self._refused = refused
        self._total = 0
        self._directories: list[tuple[Path, int]] = []
        self._known: set[Path] = set()
        """Real directories: nobody but us changes them meanwhile."""

    def run(self, descriptor: int) -> int:
        """Unpack from a pipe to its end, which is then closed. Returns the bytes of all files.

        ``PermissionError`` for what is refused, ``OSError`` with ``EFBIG`` for too much,
        ``OSError`` with ``EIO`` for a damaged stream.
        """
        self._target.mkdir(parents=True, exist_ok=True)
        with os.fdopen(descriptor, "rb") as stream:
            try:
                self._unpack(_Bounded(stream))
            except (tarfile.TarError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
                # tarfile believes the numbers and texts that it finds
                raise OSError(errno.EIO, f"the archive is damaged: {error}") from error
        for path, mode in reversed(self._directories):  # last, or a read-only one could not be filled
            path.chmod(mode)
        return self._total

    def _unpack(self, stream: _Bounded) -> None:
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for count, member in enumerate(archive):
                stream.allow(member.size)
                self._check_size(member, count)
                try:
                    self._extract(archive, member)
                except OSError as error:
                    if error.errno != errno.ENAMETOOLONG:
                        raise
                    self._refuse(member, "its name is too long here")

    def _check_size(self, member: tarfile.TarInfo, count: int) -> None:
        if member.size < 0:
            raise tarfile.ReadError("an entry of less than nothing")
        self._total += member.size if member.isreg() else 0
        if self._total > self._max_bytes or count >= _MAX_ENTRIES:
            raise OSError(errno.EFBIG, f"more than {self._max_bytes} bytes or {_MAX_ENTRIES} entries")

    def _extract(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.name)
        if member.name.startswith("/") or ".." in member.name.split("/"):
            raise PermissionError(errno.EPERM, "a name leads out of the directory", member.name)
        if not parts:
            return
        if len(parts) > _MAX_DEPTH:
            self._refuse(member, f"it lies more than {_MAX_DEPTH} levels deep")
            return
        path = self._target.joinpath(*parts)
        if not self._parents_are_directories(parts[:-1]):
            self._refuse(member, "it lies behind a link")
        elif member.isdir():
            self._make_directory(path, member)
        elif member.isreg():
            self._write_file(path, archive, member)
        elif member.issym():
            self._make_link(path, parts, member)
        elif member.islnk():
            self._make_hard_link(path, member)
        else:
            self._refuse(member, "it is neither file, directory nor link")

    def _parts(self, name: str) -> list[str]:
        return [part for part in name.split("/") if part not in _STOP][self._strip :]

    def _refuse(self, member: tarfile.TarInfo, reason: str) -> None:
        if self._refused is None:
            raise PermissionError(errno.EPERM, f"refused, for {reason}", member.name)
        self._refused.append(member.name)

    def _parents_are_directories(self, parts: list[str]) -> bool:
        """Whether the way to an entry leads through real directories only; missing ones are made."""
        if self._target.joinpath(*parts) in self._known:
            return True
        path = self._target
        for part in parts:
            path = path / part
            try:
                if path not in self._known and not stat.S_ISDIR(path.lstat().st_mode):
                    return False
            except FileNotFoundError:
                path.mkdir()
            self._known.add(path)
        return True

    def _remove(self, path: Path) -> None:
        """Make room for an entry; a directory with something in it stays and is an error."""
        if _is_directory(path):
            path.rmdir()
            self._known.discard(path)
        else:
            path.unlink(missing_ok=True)

    def _make_directory(self, path: Path, member: tarfile.TarInfo) -> None:
        if not _is_directory(path):
            self._remove(path)
            path.mkdir()
        self._directories.append((path, (member.mode & 0o755) | 0o700))

    def _write_file(self, path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._remove(path)
        source = archive.extractfile(member)
        if source is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            while chunk := source.read(_CHUNK):
                append(file, chunk)
            os.fchmod(file.fileno(), (member.mode & 0o755) | 0o600)

    def _make_link(self, path: Path, parts: list[str], member: tarfile.TarInfo) -> None:
        if not _stays_inside(parts[:-1], member.linkname):
            self._refuse(member, "the link leads out of the directory")
            return
        self._remove(path)
        path.symlink_to(member.linkname)

    def _make_hard_link(self, path: Path, member: tarfile.TarInfo) -> None:
        parts = self._parts(member.linkname)
        source = self._target.joinpath(*parts)
        inside = parts and not member.linkname.startswith("/") and ".." not in member.linkname.split("/")
        if not (inside and self._parents_are_directories(parts[:-1]) and _is_file(source)):
            self._refuse(member, "the hard link leads to no file of the archive")
            return
        if source != path:
            self._remove(path)
            os.link(source, path, follow_symlinks=False)


def _stays_inside(directory: list[str], link: str) -> bool:
    """Whether a link in ``directory`` can only lead to places below the top.

    ``..`` may stand only at the start, where what it leaves is a real directory of ours: after
    another name it would lead up from wherever that name leads, which a later entry may decide.
    """
    parts = [part for part in link.split("/") if part not in _STOP]
    names = [part for part in parts if part != ".."]
    up = len(parts) - len(names)
    return not link.startswith("/") and parts[up:] == names and up <= len(directory)


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def append(file: IO[bytes], chunk: bytes) -> None:
    """Write a chunk at the end of a file, as a hole if it is all zero.

    So a sparse file, which costs the sandbox nothing, costs this machine nothing either.
    """
    if chunk.lstrip(b"\0"):
        file.write(chunk)
    else:
        file.seek(len(chunk), os.SEEK_CUR)
        file.truncate()


class _Bounded(io.RawIOBase):
    """A stream of which no more may be read for each entry than its content and a little."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._left = _MAX_HEADER

    def allow(self, size: int) -> None:
        """An entry of so many bytes has been described."""
        self._left = size + _MAX_HEADER

    def read(self, size: int = -1) -> bytes:
        """``tarfile.ReadError`` where an entry's description has no end."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise tarfile.ReadError("an entry is described by too many bytes")
        return data
