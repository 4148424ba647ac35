"""Which tools a group of rollouts gets, and their definitions for the model."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache

from environments.errors import ConfigError
from environments.tools.base import JSON, Tool, ToolSettings
from environments.tools.registry import all_tools
from environments.tools.toolsets import (
    distribution as percentages_of,
)
from environments.tools.toolsets import (
    known_tool_names,
    likeliest,
    resolve_toolsets,
    sample_toolsets_from_distribution,
    toolset_names,
    toolset_tools,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ToolSelection:
    """``tools`` can be used; ``missing`` was chosen too but cannot be, with the reason by name."""

    tools: list[Tool] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def schemas(self) -> list[JSON]:
        """Definitions for the model."""
        return [tool.schema() for tool in self.tools]


def get_tool_definitions(
    enabled_toolsets: list[str] | None = None,
    disabled_toolsets: list[str] | None = None,
    quiet_mode: bool = True,
) -> list[JSON]:
    """Definitions of the tools in these toolsets; ``quiet_mode=False`` logs which they are."""
    selection = select_tools(enabled_toolsets, disabled_toolsets)
    if not quiet_mode:
        logger.info("tools: %s", ", ".join(tool.name for tool in selection.tools) or "none")
    return selection.schemas


def select_tools(
    enabled: list[str] | None = None,
    disabled: list[str] | None = None,
    distribution: str | None = None,
    seed: int = 0,
    brought: Iterable[Tool] = (),
    settings: ToolSettings | None = None,
) -> ToolSelection:
    """The tools of one group: drawn from a distribution if there is one, else the enabled ones.

    The tools that the environment has ``brought`` come after them, unless ``disabled`` names them or
    their toolset; one with the name of a built-in tool takes its place.

    A tool that cannot be used here is a ``ConfigError`` if ``enabled`` asked for it; out of all
    toolsets (``enabled=None``), out of a distribution or out of a toolset that it is optional in, it is
    left out, and that is logged once. What a tool needs may depend on ``settings``.
    """
    settings = settings or ToolSettings()
    own, disabled = _brought(brought, disabled)
    if distribution is not None:
        if enabled is not None:
            _say_once(f"enabled_toolsets has no effect beside the distribution {distribution!r}")
        selection = _available(
            resolve_toolsets(_draw(distribution, disabled, seed, settings), disabled), settings
        )
    else:
        names = resolve_toolsets(_without(enabled, own), disabled)
        selection = _available([name for name in names if name not in own], settings)
        refused = _demanded(_without(enabled, own) or (), selection.missing)
        if refused:
            raise ConfigError(_refusal(refused))
    if selection.missing:
        _say_once(f"tools left out: {_list_of_reasons(selection.missing)}")
    tools = [tool for tool in selection.tools if tool.name not in own]
    if not tools and not own:
        _say_once(f"the model gets no tools: {_why_none(enabled, disabled, selection.missing)}")
    return ToolSelection([*tools, *own.values()], selection.missing)


def _why_none(enabled: list[str] | None, disabled: list[str] | None, missing: dict[str, str]) -> str:
    if enabled is not None and not enabled:
        return "enabled_toolsets is an empty list (leave it out to enable all)"
    if missing:
        return "none of those chosen can be used here"
    return f"disabled_toolsets {disabled} takes all of them away"


def _brought(tools: Iterable[Tool], disabled: list[str] | None) -> tuple[dict[str, Tool], list[str] | None]:
    """The environment's own tools that are left, and what else is disabled."""
    own = {tool.name: tool for tool in tools}
    known = {*own, *(tool.toolset for tool in own.values())}
    left = {name: tool for name, tool in own.items() if not {name, tool.toolset} & set(disabled or ())}
    others = [name for name in disabled or () if name not in known or _in_tables(name)]
    return left, others if disabled is not None else None


def _without(enabled: list[str] | None, own: dict[str, Tool]) -> list[str] | None:
    """Without the names of own tools and their toolsets, which are there without being asked for."""
    mine = {*own, *(tool.toolset for tool in own.values())}
    return None if enabled is None else [name for name in enabled if name not in mine or _in_tables(name)]


def _in_tables(name: str) -> bool:
    return name in toolset_names() or name in known_tool_names()


def _draw(name: str, disabled: list[str] | None, seed: int, settings: ToolSettings) -> list[str]:
    """A draw that leaves at least one tool, where the distribution has any that can be used."""
    drawn = sample_toolsets_from_distribution(name, seed)
    if _available(resolve_toolsets(drawn, disabled), settings).tools:
        return drawn
    percentages = percentages_of(name)
    usable = {
        toolset: percentage
        for toolset, percentage in percentages.items()
        if _available(resolve_toolsets([toolset], disabled), settings).tools
    }
    if not usable:
        missing = _available(resolve_toolsets(list(percentages), None), settings).missing
        raise ConfigError(
            f"distribution {name!r} has no tool that can be used"
            + (f": {_list_of_reasons(missing)}" if missing else " once disabled_toolsets are taken away")
        )
    return [likeliest(usable)]


def _available(names: Iterable[str], settings: ToolSettings) -> ToolSelection:
    registered = all_tools()
    selection = ToolSelection()
    for name in names:
        tool = registered.get(name)
        if tool is None:
            selection.missing[name] = "not available in this version"
            continue
        reason = tool.missing(settings)
        if reason is None:
            selection.tools.append(tool)
        else:
            selection.missing[name] = reason
    return selection


def _demanded(enabled: Iterable[str], missing: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Of what is missing, that which was asked for: who asked, and the reason, by tool."""
    demanded: dict[str, tuple[str, str]] = {}
    for toolset in enabled:
        for name in toolset_tools(toolset):
            tool = all_tools().get(name)
            if name in missing and (tool is None or toolset not in tool.optional_in):
                demanded.setdefault(name, (toolset, missing[name]))
    return demanded


def _refusal(demanded: dict[str, tuple[str, str]]) -> str:
    lines = []
    for name, (origin, reason) in demanded.items():
        of = f" of toolset {origin!r}" if origin in toolset_names() else ""
        lines.append(f"tool {name!r}{of}: {reason}")
    return f"enabled_toolsets asks for tools that cannot be used: {'; '.join(lines)}"


def _list_of_reasons(missing: dict[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())


@cache
def _say_once(text: str) -> None:
    # Groups select their tools by the thousand; the cache is what makes each remark appear once.
    logger.warning(text)
