"""The web tools and what they need."""

from __future__ import annotations

import os
from importlib.util import find_spec

from environments.errors import ConfigError
from environments.sandboxes.egress.hosts import AllowList
from environments.tools.base import Tool, ToolSettings
from environments.tools.web.extracting import DEFAULT_CHARACTERS, web_extract
from environments.tools.web.providers import choose
from environments.tools.web.searching import web_search


def check(settings: ToolSettings) -> None:
    """``ConfigError`` for settings of the web that cannot be."""
    web = settings.web
    AllowList(web.allowed_hosts)
    if web.cache == "replay" and not web.cache_directory:
        raise ConfigError("--env.web_cache replay needs --env.web_cache_directory: where the recording is")


def search_requirement(settings: ToolSettings) -> str | None:
    """What web_search lacks."""
    check(settings)
    if settings.web.cache == "replay":
        return None
    provider = choose(settings.web, os.environ)
    return provider if isinstance(provider, str) else None


def extract_requirement(settings: ToolSettings) -> str | None:
    """What web_extract lacks."""
    check(settings)
    if find_spec("trafilatura") is None or find_spec("pypdf") is None:
        return "needs the extra 'web': pip install 'hermes-environments[web]'"
    return None


TOOLS = (
    Tool(
        name="web_search",
        description=(
            "Search the web. Gives title, address and a short description of each result; read pages "
            "with web_extract."
        ),
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to search for."},
                "limit": {
                    "type": "integer",
                    "default": 5,
                    "minimum": 1,
                    "maximum": 100,
                    "description": "Most results.",
                },
            },
            "required": ["query"],
        },
        function=web_search,
        toolset="web",
        parallel_safe=True,
        configured_requirement=search_requirement,
        optional_in=("browser",),
    ),
    Tool(
        name="web_extract",
        description=(
            "Read web pages and PDF documents by address: their main text as Markdown, without running "
            "scripts. Each page has its own content or error."
        ),
        parameters={
            "type": "object",
            "properties": {
                "urls": {
                    "type": "array",
                    "items": {"type": "string"},
                    "maxItems": 5,
                    "description": "One to five http or https addresses.",
                },
                "char_limit": {
                    "type": "integer",
                    "minimum": 2000,
                    "description": f"Most characters of each page; {DEFAULT_CHARACTERS:,} if left out.",
                },
            },
            "required": ["urls"],
        },
        function=web_extract,
        toolset="web",
        parallel_safe=True,
        configured_requirement=extract_requirement,
    ),
)
