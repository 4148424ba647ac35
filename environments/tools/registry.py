"""Every tool of this version, by name.

A tool module ends with ``TOOLS``, a tuple of ``Tool``; a new module is added to ``_MODULES``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from environments.errors import UnknownName
from environments.tools.base import Tool

_MODULES = (
    "terminal",
    "process",
    "read_file",
    "write_file",
    "patch",
    "search_files",
    "todo",
    "web.tools",
    "browser.tools",
    "execute_code",
    "vision.tools",
)


def all_tools() -> dict[str, Tool]:
    """All tools by name; their modules are imported at the first call."""
    return dict(_load())


def get_tool(name: str) -> Tool:
    """One tool. ``UnknownName`` if there is none of that name."""
    tools = _load()
    if name not in tools:
        raise UnknownName("tool", name, tools)
    return tools[name]


@cache
def _load() -> dict[str, Tool]:
    modules = (import_module(f"environments.tools.{name}") for name in _MODULES)
    return {tool.name: tool for module in modules for tool in module.TOOLS}
