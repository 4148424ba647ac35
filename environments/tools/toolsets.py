"""Toolsets (named groups of tools) and probability distributions over them.

The tables are data: ``toolsets.json`` beside this file. They name tools of later versions too;
``definitions.select_tools`` decides what becomes of those.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from environments.errors import UnknownName


def toolset_names() -> list[str]:
    """Names of all toolsets."""
    return list(_tables()["toolsets"])


def distribution_names() -> list[str]:
    """Names of all distributions."""
    return list(_tables()["distributions"])


def resolve_toolsets(enabled: list[str] | None, disabled: list[str] | None) -> list[str]:
    """Names of the tools in these toolsets, without those of the disabled ones.

    ``enabled=None`` means all. A tool's own name counts as a toolset of one. The order depends only
    on the set of tools, so that equal choices give equal prompts. ``UnknownName`` for other names.
    """
    chosen = toolset_names() if enabled is None else enabled
    wanted = _tools_of(chosen, "enabled_toolsets") - _tools_of(disabled or (), "disabled_toolsets")
    return [name for name in known_tool_names() if name in wanted]


def toolset_tools(name: str) -> list[str]:
    """Tools of one toolset, included toolsets among them."""
    return resolve_toolsets([name], None)


def sample_toolsets_from_distribution(name: str, seed: int) -> list[str]:
    """Draw toolsets: each on its own with its percentage; if none is drawn, the likeliest one.

    The same name and seed give the same draw everywhere.
    """
    percentages = distribution(name)
    generator = random.Random(seed)
    # One number per toolset in a fixed order, so that a draw does not depend on how dicts are ordered.
    drawn = [toolset for toolset in sorted(percentages) if generator.random() * 100 < percentages[toolset]]
    return drawn or [likeliest(percentages)]


def distribution(name: str) -> dict[str, float]:
    """Percentages of one distribution by toolset. ``UnknownName`` if it does not exist."""
    table = _tables()["distributions"]
    if name not in table:
        raise UnknownName("distribution", name, table)
    return dict(table[name])


def likeliest(percentages: Mapping[str, float]) -> str:
    """The toolset with the highest percentage; of equal ones the first by name."""
    return min(percentages, key=lambda toolset: (-percentages[toolset], toolset))


@cache
def known_tool_names() -> tuple[str, ...]:
    """Every tool that a toolset or the registry names, in the order of prompts."""
    from environments.tools.registry import all_tools

    in_toolsets = (tool for toolset in _tables()["toolsets"].values() for tool in toolset["tools"])
    return tuple(dict.fromkeys([*in_toolsets, *all_tools()]))


def _tools_of(names: Iterable[str], where: str) -> set[str]:
    table = _tables()["toolsets"]
    tools: set[str] = set()
    pending, seen = list(names), set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in table:
            tools.update(table[name]["tools"])
            pending.extend(table[name]["includes"])
        elif name in known_tool_names():
            tools.add(name)
        else:
            raise UnknownName("toolset", name, [*table, *known_tool_names()], where)
    return tools


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = json.loads(files(__package__).joinpath("toolsets.json").read_text("utf-8"))
    return tables
