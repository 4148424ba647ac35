"""``write_file``: write a whole file, exactly as given."""

from __future__ import annotations

import posixpath

from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.paths import find, is_directory, real_path, resolve

DESCRIPTION = (
    "Write a file, replacing what was there; missing directories are made. The content is written "
    "exactly as given. To change part of a file use patch."
)


async def write_file(state: ToolState, path: str, content: str) -> JSON:
    """Write ``content`` as UTF-8, without any conversion."""
    target = resolve(state, path)
    if path.endswith("/") or await is_directory(state.sandbox, target):
        raise ToolInputError(f"{target} is a directory; give the path of a file in it")
    dirs_created = await find(state.sandbox, posixpath.dirname(target)) is None
    target = await real_path(state.sandbox, target)
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
