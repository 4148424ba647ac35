"""Killing what bears a mark, on a machine that may yet be about to start it."""

from __future__ import annotations

from environments.sandboxes.remote_shell import killing
from environments.sandboxes.remote_shell.program import quote


def revoked_directory(scratch: str) -> str:
    """Where marks are noted whose programs are not to begin any more."""
    return f"{scratch}/revoked"


def kill(mark: str, scratch: str) -> bytes:
    """A program that kills all that bears ``mark``, now or later.

    A provider may start a command after it was told to, and after we have given it up: so the mark is
    noted first, and a command that finds its own mark noted ends at once.
    """
    directory = quote(revoked_directory(scratch))
    note = f"mkdir -p {directory} && : >{directory}/{mark}".encode()
    return b"{\n%s\n%s\n}" % (note, killing.kill(mark))
