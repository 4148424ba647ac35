"""``web_search``: results of a search engine."""

from __future__ import annotations

import os

from environments.errors import EngineUnusable
from environments.tools.asking import Call, NoAnswer, ask
from environments.tools.base import JSON, ToolInputError, ToolState
from environments.tools.web.cache import NotRecorded
from environments.tools.web.providers import Hit, Provider, Unreadable, address, choose
from environments.tools.web.settings import WebSettings

LONGEST_QUERY = 2_000

_LONGEST_ANSWER = 5_000_000


class SearchFailed(Exception):
    """The provider gave no answer that could be used; the text is for the model."""


async def web_search(state: ToolState, query: str, limit: int = 5) -> JSON:
    """The first ``limit`` results."""
    from environments.tools.web.service import web_of

    query = " ".join(query.split())
    if not query:
        raise ToolInputError("query is empty; say what to search for")
    if len(query) > LONGEST_QUERY:
        raise ToolInputError(f"query has {len(query):,} characters; at most {LONGEST_QUERY:,} make sense")
    web = await web_of(state)
    settings = state.settings.web

    async def look_up() -> tuple[JSON, bool]:
        provider = choose(settings, os.environ)
        if isinstance(provider, str):
            raise SearchFailed(f"web_search {provider}")
        hits = await search(provider, settings, query, limit)
        return {"web": [_shown(hit, position) for position, hit in enumerate(hits, 1)]}, True

    try:
        data = await web.cache.answer({"kind": "search", "query": query, "limit": limit}, look_up)
    except NotRecorded:
        return {"success": False, "error": "this search is not in the recording of the web that is used here"}
    except SearchFailed as error:
        return {"success": False, "error": str(error)}
    return {"success": True, "data": data}


async def search(provider: Provider, settings: WebSettings, query: str, limit: int) -> list[Hit]:
    """Hits, each address once. Raises ``SearchFailed``, ``EngineUnusable`` for a key that is refused."""
    base = address(provider, settings, os.environ)
    key = os.environ.get(provider.key, "").strip() if provider.key else ""
    found: dict[str, Hit] = {}
    for page in range(provider.pages):
        call = provider.ask(f"{base}", query, min(limit, provider.per_page), page, key)
        new = [hit for hit in await _hits(provider, call, settings.timeout) if hit.url not in found]
        found.update((hit.url, hit) for hit in new)
        if len(found) >= limit or not new:
            break
    return list(found.values())[:limit]


async def _hits(provider: Provider, call: Call, timeout: float) -> list[Hit]:
    try:
        answer = await ask(call, timeout=timeout, longest=_LONGEST_ANSWER)
        if len(answer) >= _LONGEST_ANSWER:
            raise Unreadable(f"more than {_LONGEST_ANSWER:,} bytes")
        return provider.read(answer.decode("utf-8", "replace"))
    except NoAnswer as error:
        if error.refused:
            raise EngineUnusable(_refusal(provider, str(error))) from None
        raise SearchFailed(f"the search provider {provider.name} failed: {error}") from None
    except Unreadable as error:
        raise SearchFailed(f"{provider.name} answered with {error}") from None


def _refusal(provider: Provider, problem: str) -> str:
    if provider.key:
        return f"{provider.name} refuses the key in {provider.key}: {problem}"
    if provider.name == "searxng":
        return f"SearXNG refuses the search: {problem}; enable json under search.formats in its settings.yml"
    return f"{provider.name} refuses the search: {problem}"


def _shown(hit: Hit, position: int) -> JSON:
    return {"title": hit.title, "url": hit.url, "description": hit.description, "position": position}
