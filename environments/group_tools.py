"""Which tools the rollouts of a group get."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.attempt_scope import GroupScope
    from environments.hermes_base_env import HermesAgentBaseEnv
    from environments.tools.base import Tool


def selected_tools(environment: HermesAgentBaseEnv, group: GroupScope | None) -> list[Tool]:
    """Tools by the configuration, or by the item that a group is about. Raises ``ConfigError``.

    What a distribution draws follows from the group's seed, so all of its rollouts get the same.
    """
    from environments.tools.definitions import select_tools

    config = environment.config
    named = environment.toolsets_for_item(group.item) if group is not None else None
    selection = select_tools(
        named if named is not None else config.enabled_toolsets,
        config.disabled_toolsets,
        None if named is not None else config.distribution,
        group.seed if group is not None else config.seed,
        brought=environment.brought_tools,
        settings=environment.tool_settings(),
    )
    return list(selection.tools)


def resolved_tools(environment: HermesAgentBaseEnv) -> list[Tool]:
    """Tools by the environment's own ``_resolve_tools_for_group``, in the order of its schemas."""
    from environments.tools.registry import get_tool

    brought = {tool.name: tool for tool in environment.brought_tools}
    schemas, names = environment._resolve_tools_for_group()
    ordered = [schema["function"]["name"] for schema in schemas]
    return [brought.get(name) or get_tool(name) for name in ordered if name in names]
