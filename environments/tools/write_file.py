"""``write_file``: write a whole file, exactly as given."""

from __future__ import annotations

import posixpath

from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.paths import find, look_at, resolve

DESCRIPTION = (
    "Write a file, replacing what was there; missing directories are made. The content is written "
    "exactly as given. To change part of a file use patch."
)


async def write_file(state: ToolState, path: str, content: str) -> JSON:
    """Write ``content`` as UTF-8, without any conversion."""
    target = resolve(state, path)
    named = target
    target, info, is_directory = await look_at(state.sandbox, target)
    if path.endswith("/") or is_directory:
        raise ToolInputError(f"{named} is a directory; give the path of a file in it")
    # What is there already has a directory around it.
    dirs_created = info is None and await find(state.sandbox, posixpath.dirname(target)) is None
    data = content.encode()
    await state.sandbox.write_bytes(target, data)
    return {"path": target, "bytes_written": len(data), "dirs_created": dirs_created}


TOOLS = (
    Tool(
        name="write_file",
        description=DESCRIPTION,
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "File; absolute, ~ or relative to the shell."},
                "content": {"type": "string", "description": "The whole content."},
            },
            "required": ["path", "content"],
        },
        function=write_file,
        toolset="file",
    ),
)
