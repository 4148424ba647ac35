"""Paths as the model writes them, and what to say when one does not exist."""

from __future__ import annotations

import difflib
import posixpath

from environments.sandboxes.base import FileInfo, Sandbox
from environments.tools.base import ToolInputError, ToolState
from environments.tools.shell_state import current_directory


def resolve(state: ToolState, path: str) -> str:
    """Absolute path in the sandbox: ``~`` is the home, relative paths start at the shell's directory.

    ``..`` is left to the sandbox's kernel, which knows where links lead.
    """
    if not path.strip():
        raise ToolInputError("the path is empty; give the path of a file")
    if "\0" in path:
        raise ToolInputError("the path has a NUL character in it")
    home = state.sandbox.home
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    joined = posixpath.join(current_directory(state), path)
    parts = [part for part in joined.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts)


async def find(sandbox: Sandbox, path: str) -> FileInfo | None:
    """What is at a path, or None."""
    try:
        return await sandbox.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


async def is_directory(sandbox: Sandbox, path: str) -> bool:
    """Whether a path is a directory, or a link to one."""
    info = await find(sandbox, path)
    if info is None or info.kind != "link":
        return info is not None and info.kind == "directory"
    result = await sandbox.exec(["sh", "-c", 'test -d "$1"', "sh", path], timeout=30)
    return result.exit_code == 0


async def not_found(sandbox: Sandbox, path: str) -> str:
    """Text for a path that does not exist, naming near ones in the same directory."""
    directory, name = posixpath.split(path)
    try:
        entries = await sandbox.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} does not exist, nor does the directory {directory}"
    except OSError as error:
        return f"{path} cannot be reached: {describe(error)}"
    names = [posixpath.basename(entry.path) for entry in entries]
    if name in names:
        return f"{path} is a link to what does not exist"
    folded = {name.casefold(): name for name in names}
    near = difflib.get_close_matches(name.casefold(), list(folded), n=3, cutoff=0.5)
    near += [other for other in folded if name.casefold() in other and other not in near][:3]
    if near:
        similar = ", ".join(posixpath.join(directory, folded[other]) for other in near[:5])
        return f"{path} does not exist; similar: {similar}"
    return f"{path} does not exist"


def describe(error: OSError) -> str:
    """What went wrong, without Python's punctuation."""
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return "a part of its path is a file and no directory"
    return error.strerror or str(error) or type(error).__name__
