"""Bounded looks at files of a sandbox, whose sizes are up to whoever works in it.

A sparse file of any size costs a sandbox nothing, and its reader on this machine all its memory.
"""

from __future__ import annotations

import os

from environments.sandboxes.base import FileInfo, Sandbox


async def follow(sandbox: Sandbox, path: str) -> FileInfo:
    """What a path leads to, links followed; the link itself where it leads nowhere. ``OSError``."""
    info = await sandbox.stat(path)
    if info.kind != "link":
        return info
    found = await sandbox.exec(["readlink", "-f", "--", info.path], timeout=60)
    target = os.fsdecode(found.stdout.removesuffix(b"\n"))
    try:
        return await sandbox.stat(target) if found.exit_code == 0 and target else info
    except (FileNotFoundError, NotADirectoryError):
        return info


async def read_start(sandbox: Sandbox, path: str, limit: int) -> tuple[bytes, int]:
    """Up to ``limit`` bytes of a file and its whole size in bytes. ``OSError`` as of ``read_bytes``.

    The bound is on what is read: a size learnt before could change until then.
    """
    data = await sandbox.read_bytes(path, length=limit + 1)
    if len(data) <= limit:
        return data, len(data)
    info = await follow(sandbox, path)
    return data[:limit], max(len(data), info.size if info.kind == "file" else 0)
