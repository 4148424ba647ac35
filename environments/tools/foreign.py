"""Tools that a run has from other programs: MCP servers, an installed Hermes Agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from environments.tools.base import Tool
from environments.tools.shared import SharedResources

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig


@dataclass(slots=True)
class ForeignTools:
    """``unselected`` are Hermes Agent's that no model gets; ``ctx.call_tool`` reaches them."""

    hermes: list[Tool] = field(default_factory=list)
    mcp: list[Tool] = field(default_factory=list)
    unselected: list[Tool] = field(default_factory=list)


async def load_foreign_tools(config: HermesAgentEnvConfig, shared: SharedResources) -> ForeignTools:
    """What the configuration names. Raises ``ConfigError`` where it cannot be had."""
    found = ForeignTools()
    if config.mcp_servers:
        from environments.tools.mcp.tools import load_tools

        found.mcp = await load_tools(config.mcp_servers, shared)
    if config.hermes_python or config.hermes_tools:
        from environments.tools.hermes.tools import load_hermes_tools

        hermes = await load_hermes_tools(config, shared)
        found.hermes, found.unselected = hermes.given, hermes.others
    return found
