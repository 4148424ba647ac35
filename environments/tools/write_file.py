"""``write_file``: write a whole file, exactly as given."""

from __future__ import annotations

from environments.tools.base import JSON, Tool, ToolInputError, ToolState
from environments.tools.paths import resolve

DESCRIPTION = (
    "Write a file, replacing what was there; missing directories are made. The content is written "
    "exactly as given. To change part of a file use patch."
)


async def write_file(state: ToolState, path: str, content: str) -> JSON:
    """Write ``content`` as UTF-8, without any conversion."""
    target = resolve(state, path)
    data = content.encode()
    try:
        if path.endswith("/"):
            raise IsADirectoryError
        saved = await state.sandbox.save(target, data)
    except IsADirectoryError:
        raise ToolInputError(f"{target} is a directory; give the path of a file in it") from None
    return {"path": saved.path, "bytes_written": len(data), "dirs_created": saved.made_directories}


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
