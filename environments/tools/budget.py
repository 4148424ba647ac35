"""Result budgets: a result too long for the conversation goes to a file, its start stays.

File names come from a counter. A model chooses the ids of its calls, and two calls may share one.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from environments.errors import ConfigError, UnknownName
from environments.tools.base import JSON, Tool, ToolSettings, ToolState
from environments.tools.paths import describe
from environments.tools.toolsets import known_tool_names

_SLOT = "stored_results"


def to_text(result: JSON) -> str:
    """A result as the model gets it: JSON on one line, valid Unicode."""
    text = json.dumps(result, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode("utf-8")


def size_limit(tool: Tool, settings: ToolSettings) -> int | None:
    """Longest result of a tool in characters; None where there is no limit."""
    if tool.name in settings.tool_result_overrides:
        return settings.tool_result_overrides[tool.name]
    return None if tool.exempt_from_budget else settings.default_result_size_chars


def check_overrides(overrides: Mapping[str, int], tools: Iterable[Tool]) -> None:
    """Every size is one, and of a tool that there is. ``UnknownName``, ``ConfigError``."""
    names = {*known_tool_names(), *(tool.name for tool in tools)}
    for name, size in overrides.items():
        if name not in names:
            raise UnknownName("tool", name, names, "tool_result_overrides")
        if size < 1:
            raise ConfigError(f"tool_result_overrides: {name} must be at least 1, not {size}")


async def store(state: ToolState, result: JSON, size: int) -> str:
    """Write a whole result to a file in the sandbox; returns the text that replaces it.

    ``size`` is its length as JSON. The file holds the same content in lines, so that read_file and
    grep can work on it.
    """
    text = _readable(result)
    number = state.slots[_SLOT] = state.slots.get(_SLOT, 0) + 1
    path = posixpath.join(state.sandbox.scratch, "tool_results", f"result_{number:04d}.txt")
    preview = text[: state.settings.preview_size_chars]
    replaced: JSON = {"preview": preview, "result_size": size}
    for key in ("exit_code", "error", "total_count", "success"):
        value = result.get(key)
        if key in result and (not isinstance(value, str) or len(value) <= state.settings.preview_size_chars):
            replaced[key] = value
    try:
        await state.sandbox.write_bytes(path, text.encode("utf-8", "replace"))
    except OSError as error:
        replaced["notice"] = (
            f"The result has {size:,} characters, too many to show, and could not be stored "
            f"({describe(error)}). This is its start; ask for less."
        )
        return to_text(replaced)
    replaced["result_path"] = path
    replaced["notice"] = (
        f"The result has {size:,} characters, too many to show. This is its start; the whole of it is "
        f"in {path}: read parts with read_file (offset, limit) or search it."
    )
    return to_text(replaced)


def over_turn_budget(sizes: Sequence[int], exempt: Sequence[bool], budget: int, stored: int) -> list[int]:
    """Which results of a turn to store so that the rest fits: the longest first, exempt ones last.

    ``stored`` is about what a stored result still takes; shorter ones are not worth storing.
    """
    total = sum(sizes)
    chosen: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (exempt[i], -sizes[i], i)):
        if total <= budget:
            break
        if sizes[index] > stored:
            chosen.append(index)
            total -= sizes[index] - stored
    return chosen


def _readable(result: JSON) -> str:
    return "\n".join(_section(key, value) for key, value in result.items()) + "\n"


def _section(key: str, value: Any) -> str:
    if isinstance(value, str) and "\n" in value:
        return f"{key}:\n{value}"
    if isinstance(value, list) and value:
        return "\n".join([f"{key}:", *(json.dumps(item, ensure_ascii=False, default=str) for item in value)])
    if isinstance(value, str):
        return f"{key}: {value}"
    return f"{key}: {json.dumps(value, ensure_ascii=False, default=str)}"
