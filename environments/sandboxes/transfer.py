"""Files and trees between this machine and any sandbox: binary-safe, streamed.

Whatever comes out of a sandbox is hostile. What a download writes stays below the directory it was
given, whatever the names and links in the archive say.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import posixpath
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import IO, TypeVar

from environments.sandboxes.base import Sandbox
from environments.sandboxes.extraction import DEFAULT_MAX_BYTES, Extraction, append
from environments.sandboxes.reading import follow

T = TypeVar("T")

_SMALL = 1 << 20
"""Files up to this size are written in one call instead of a tar stream."""

DEFAULT_FILE_MAX_BYTES = 4 << 30
"""Bytes of one downloaded file. Logs, archives and models that a grader looks at are smaller, and a
sparse file, which costs the sandbox nothing, cannot fill this machine's disk."""

_CHUNK = 8 << 20
_STREAM_CHUNK = 1 << 18


async def upload_file(sandbox: Sandbox, local_path: str | Path, remote_path: str) -> int:
    """Copy a file into the sandbox, permissions kept. Returns its size in bytes.

    A ``remote_path`` that is a directory or ends with ``/`` takes the file under its own name.
    Raises ``OSError`` of either side.
    """
    source = Path(local_path)
    status = await asyncio.to_thread(source.stat)
    target = await _target(sandbox, remote_path, source.name)
    if status.st_size <= _SMALL:
        data = await asyncio.to_thread(source.read_bytes)
        await sandbox.write_bytes(target, data, mode=status.st_mode & 0o777)
        return len(data)
    directory, name = posixpath.split(target)

    def add(archive: tarfile.TarFile) -> int:
        return _add(archive, source, name)

    return await _upload(sandbox, add, directory or sandbox.working_directory)


async def upload_dir(sandbox: Sandbox, local_dir: str | Path, remote_dir: str) -> int:
    """Copy the contents of a directory into ``remote_dir``, which is made if missing.

    Links stay links; sockets, pipes and devices are left out. Returns the bytes of all files.
    """
    source = Path(local_dir)
    if not await asyncio.to_thread(source.is_dir):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(source))

    def add(archive: tarfile.TarFile) -> int:
        total = 0
        for directory, names, files in os.walk(source):
            names.sort()
            for name in sorted([*names, *files]):
                path = Path(directory, name)
                total += _add(archive, path, str(path.relative_to(source)))
        return total

    return await _upload(sandbox, add, remote_dir)


async def download_file(
    sandbox: Sandbox,
    remote_path: str,
    local_path: str | Path,
    *,
    max_bytes: int = DEFAULT_FILE_MAX_BYTES,
) -> int:
    """Copy a file out of the sandbox. Returns its size in bytes.

    A ``local_path`` that is a directory takes the file under its own name; parents are made. The
    file appears whole or not at all, with holes where the original is zero for long. More than
    ``max_bytes`` is an error (``OSError`` with ``EFBIG``).
    """
    _check_size(remote_path, (await follow(sandbox, remote_path)).size, max_bytes)
    target = Path(local_path)
    if await asyncio.to_thread(target.is_dir):
        target /= posixpath.basename(remote_path)
    await asyncio.to_thread(target.parent.mkdir, parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name[:200]}.{os.getpid()}.partial")
    total = 0
    try:
        with await asyncio.to_thread(partial.open, "wb") as file:
            while True:
                chunk = await sandbox.read_bytes(remote_path, offset=total, length=_CHUNK)
                total += len(chunk)
                _check_size(remote_path, total, max_bytes)  # it may grow, or have told no size
                await asyncio.to_thread(append, file, chunk)
                if len(chunk) < _CHUNK:
                    break
        await asyncio.to_thread(partial.replace, target)
    except BaseException:  # cancelled, too: no half of a file is left
        partial.unlink(missing_ok=True)
        raise
    return total


async def download_dir(
    sandbox: Sandbox,
    remote_dir: str,
    local_dir: str | Path,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    refused: list[str] | None = None,
) -> int:
    """Copy the contents of a directory out of the sandbox into ``local_dir``, which is made if missing.

    Returns the bytes of all files. Links that lead out of the tree, devices, what lies more than 256
    levels deep and the like are an error (``PermissionError``), unless ``refused`` is given: then they
    are left out and named there. More than ``max_bytes`` is an error (``OSError`` with ``EFBIG``), names
    that lead out always are.
    """
    source = await _directory(sandbox, remote_dir)
    strip = 0 if source == "/" else 1  # names in the archive begin with that of the directory
    extraction = Extraction(Path(local_dir), strip=strip, max_bytes=max_bytes, refused=refused)
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(write, False)
    extracting = _in_thread(extraction.run, read)
    try:
        async with _closing(sandbox.download_tar(source)) as chunks:
            async for chunk in chunks:
                if not await _write(write, chunk):
                    break
    finally:
        os.close(write)  # the thread sees the end and stops, also when we were cancelled
        await asyncio.wait({extracting})
    return extracting.result()


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Close a stream that is left before its end, so that what feeds it in the sandbox ends now."""
    try:
        yield stream
    finally:
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def _directory(sandbox: Sandbox, path: str) -> str:
    """The path of a directory, a link to one followed. ``NotADirectoryError``."""
    path = posixpath.normpath(path)
    info = await follow(sandbox, path)
    if info.kind != "directory":
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    return info.path


def _check_size(path: str, size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise OSError(errno.EFBIG, f"the file is {size} bytes or more, which is more than {max_bytes}", path)


async def _target(sandbox: Sandbox, remote_path: str, name: str) -> str:
    if not remote_path.endswith("/"):
        try:
            if (await sandbox.stat(remote_path)).kind != "directory":
                return remote_path
        except (FileNotFoundError, NotADirectoryError):
            return remote_path
    return posixpath.join(remote_path, name)


def _add(archive: tarfile.TarFile, path: Path, name: str) -> int:
    """Add one entry, nobody's in particular; returns the bytes of its content."""
    info = archive.gettarinfo(path, name)
    if info is None or not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        return 0
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    if not info.isreg():
        archive.addfile(info)
        return 0
    with path.open("rb") as file:
        archive.addfile(info, file)
    return info.size


async def _upload(sandbox: Sandbox, add: Callable[[tarfile.TarFile], int], directory: str) -> int:
    """Pack in a thread, send from here; a pipe between them keeps both at the same pace."""
    read, write = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read, False)

    def pack() -> int:
        with os.fdopen(write, "wb", closefd=True) as pipe:
            return _pack(pipe, add)

    packing = _in_thread(pack)
    try:
        await sandbox.upload_tar(_chunks(read), directory)
    finally:
        os.close(read)  # a thread that still packs then fails on its next write
        await asyncio.wait({packing})
    return packing.result()


def _in_thread(function: Callable[..., T], *arguments: object) -> asyncio.Task[T]:
    """A thread's work as a task. Whoever else fails first need not ask how it went."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


def _pack(pipe: IO[bytes], add: Callable[[tarfile.TarFile], int]) -> int:
    with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        return add(archive)


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, _STREAM_CHUNK)
        except BlockingIOError:
            await _ready(descriptor, writing=False)
            continue
        if not chunk:
            return
        yield chunk


async def _write(descriptor: int, data: bytes) -> bool:
    """Write all of ``data``; False when the reader has had enough."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view[:_STREAM_CHUNK]) :]
        except BlockingIOError:
            await _ready(descriptor, writing=True)
        except BrokenPipeError:
            return False
    return True


async def _ready(descriptor: int, *, writing: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)
