"""The tools of MCP servers, as tools of ours: ``mcp_SERVER_TOOL`` in the toolset ``mcp-SERVER``."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from environments.errors import ConfigError
from environments.tools.attachments import store_encoded
from environments.tools.base import JSON, Tool, ToolFunction, ToolState
from environments.tools.mcp.server import McpServer, ServerFailure
from environments.tools.mcp.settings import ServerSettings, parse_servers
from environments.tools.shared import SharedResources

_LONGEST_NAME = 64
_SLOT = "mcp"


async def load_tools(servers: Mapping[str, Any], shared: SharedResources) -> list[Tool]:
    """The tools of all servers that ``mcp_servers`` names, in the order of servers and of their lists.

    ``ConfigError`` where a server cannot be used: better at the start of a run than in each rollout.
    """
    settings = parse_servers(servers)
    found = await asyncio.gather(*(_listed(one, shared) for one in settings))
    tools: dict[str, Tool] = {}
    for one, listed in zip(settings, found, strict=True):
        for entry in listed:
            tool = _make(one, entry, set(tools))
            tools[tool.name] = tool
    return list(tools.values())


async def _listed(settings: ServerSettings, shared: SharedResources) -> list[Any]:
    server = await _shared_server(settings, shared) if settings.shared else McpServer(settings)
    try:
        return await server.list_tools()
    except ServerFailure as error:
        raise ConfigError(f"mcp_servers: {error}") from error
    finally:
        if not settings.shared:
            await server.close()


async def _shared_server(settings: ServerSettings, shared: SharedResources) -> McpServer:
    async def make() -> McpServer:
        return McpServer(settings)

    return await shared.get(f"mcp server {settings.name}", make)


async def _server(settings: ServerSettings, state: ToolState) -> McpServer:
    """The run's server, or the rollout's own, which ends with it."""
    if settings.shared:
        return await _shared_server(settings, state.shared)
    servers: dict[str, McpServer] = state.slots.setdefault(_SLOT, {})
    if settings.name not in servers:
        servers[settings.name] = McpServer(settings)
        state.closers.append(servers[settings.name].close)
    return servers[settings.name]


def _make(settings: ServerSettings, listed: Any, taken: set[str]) -> Tool:
    schema = listed.input_schema if isinstance(listed.input_schema, dict) else {}
    annotations = listed.annotations
    return Tool(
        name=_name(settings.name, listed.name, taken),
        description=listed.description or listed.title or listed.name,
        parameters={"type": "object", "properties": {}, **schema},
        function=_function(settings, listed.name),
        toolset=f"mcp-{settings.name}",
        parallel_safe=bool(annotations is not None and annotations.read_only_hint),
    )


def _name(server: str, tool: str, taken: set[str]) -> str:
    """A name that every model server takes and Python too, and that no other tool has."""
    whole = re.sub(r"[^A-Za-z0-9_]", "_", f"mcp_{server}_{tool}")
    if len(whole) <= _LONGEST_NAME and whole not in taken:
        return whole
    # By the names themselves and not by a number, so that it does not depend on the order of servers.
    mark = hashlib.sha256(f"{server}/{tool}".encode()).hexdigest()[:8]
    return f"{whole[: _LONGEST_NAME - 9]}_{mark}"


def _function(settings: ServerSettings, name: str) -> ToolFunction:
    async def call(state: ToolState, /, **arguments: Any) -> JSON:
        server = await _server(settings, state)
        try:
            result = await server.call(name, arguments)
        except ServerFailure as error:
            return {"error": str(error)}
        return await _result(state, result)

    return call


async def _result(state: ToolState, result: Any) -> JSON:
    parts = [await _text(state, block) for block in result.content]
    text = "\n".join(part for part in parts if part)
    if result.is_error:
        return {"error": text or "the tool failed without a word"}
    answer: JSON = {"result": text}
    if result.structured_content is not None and not _says_the_same(text, result.structured_content):
        answer["structured_content"] = result.structured_content
    return answer


def _says_the_same(text: str, structured: Any) -> bool:
    """Whether the text is the structured content as JSON, as the protocol wants it for older clients."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    return bool(value == structured or {"result": value} == structured)


async def _text(state: ToolState, block: Any) -> str:
    """One block of a result. What is no text goes to a file in the sandbox, whose path stands here."""
    if block.type == "text":
        return str(block.text)
    if block.type in ("image", "audio"):
        return await store_encoded(state, block.data, block.mime_type, _SLOT)
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    resource = getattr(block, "resource", None)
    if getattr(resource, "text", None) is not None:
        return str(resource.text)  # type: ignore[union-attr]
    if getattr(resource, "blob", None) is not None:
        return await store_encoded(state, resource.blob, resource.mime_type, _SLOT)  # type: ignore[union-attr]
    return f"[{block.type}]"
