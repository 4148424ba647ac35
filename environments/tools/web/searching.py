"""``web_search``: results of a search engine."""

from __future__ import annotations

import asyncio
import os
import random
from typing import TYPE_CHECKING

from environments.errors import EngineUnusable
from environments.tools.base import JSON, ToolInputError, ToolState
from environments.tools.web.cache import NotRecorded
from environments.tools.web.providers import Hit, Provider, Question, Unreadable, address, choose
from environments.tools.web.settings import WebSettings
from environments.waiting import waiting

if TYPE_CHECKING:
    from aiohttp import ClientSession

LONGEST_QUERY = 2_000
TRIES = 4

_LONGEST_ANSWER = 5_000_000
_LONGEST_PAUSE = 30.0


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

    async def ask() -> tuple[JSON, bool]:
        provider = choose(settings, os.environ)
        if isinstance(provider, str):
            raise SearchFailed(f"web_search {provider}")
        hits = await search(provider, settings, query, limit)
        return {"web": [_shown(hit, position) for position, hit in enumerate(hits, 1)]}, True

    try:
        data = await web.cache.answer({"kind": "search", "query": query, "limit": limit}, ask)
    except NotRecorded:
        return {"success": False, "error": "this search is not in the recording of the web that is used here"}
    except SearchFailed as error:
        return {"success": False, "error": str(error)}
    return {"success": True, "data": data}


async def search(provider: Provider, settings: WebSettings, query: str, limit: int) -> list[Hit]:
    """Hits, each address once. Raises ``SearchFailed``, ``EngineUnusable`` for a key that is refused."""
    from aiohttp import ClientSession, ClientTimeout

    base = address(provider, settings, os.environ)
    key = os.environ.get(provider.key, "") if provider.key else ""
    found: dict[str, Hit] = {}
    async with ClientSession(timeout=ClientTimeout(total=settings.timeout), trust_env=True) as session:
        for page in range(provider.pages):
            question = provider.ask(query, min(limit, provider.per_page), page, key)
            hits = await _answer(session, f"{base}{question.path}", provider, question, key)
            new = [hit for hit in hits if hit.url not in found]
            found.update((hit.url, hit) for hit in new)
            if len(found) >= limit or not new:
                break
    return list(found.values())[:limit]


async def _answer(
    session: ClientSession, url: str, provider: Provider, question: Question, key: str
) -> list[Hit]:
    problem = ""
    for number in range(TRIES):
        status, text, pause = await _request(session, url, question)
        if status == 200:
            try:
                return provider.read(text)
            except Unreadable as error:
                raise SearchFailed(f"{provider.name} answered with {error}") from None
        problem = _without(key, f"{status or 'no answer'} {text[:200]}".strip())
        if status in (401, 402, 403):
            raise EngineUnusable(_refusal(provider, problem))
        if status and status not in (408, 425, 429) and status < 500:
            break
        if number + 1 < TRIES:
            with waiting():
                await asyncio.sleep(min(pause or random.uniform(0.5, 1.0) * 2**number, _LONGEST_PAUSE))
    raise SearchFailed(f"the search provider {provider.name} failed: {problem}")


async def _request(session: ClientSession, url: str, question: Question) -> tuple[int, str, float | None]:
    """Status (0: no answer), text, and the pause in seconds that the provider asks for."""
    from aiohttp import ClientError

    from environments.tools.web.fetching import USER_AGENT

    try:
        async with session.request(
            question.method,
            url,
            headers={"User-Agent": USER_AGENT, **question.headers},
            params=question.parameters or None,
            json=question.body,
            data=question.form,
            allow_redirects=False,  # a key goes to the provider and to nobody else
        ) as response:
            body = await response.content.read(_LONGEST_ANSWER)
            while len(body) < _LONGEST_ANSWER and (part := await response.content.read(_LONGEST_ANSWER)):
                body += part
            pause = response.headers.get("Retry-After", "")
            return response.status, body.decode("utf-8", "replace"), float(pause) if pause.isdigit() else None
    except (TimeoutError, ClientError, OSError) as error:
        return 0, str(error) or type(error).__name__, None


def _refusal(provider: Provider, problem: str) -> str:
    if provider.key:
        return f"{provider.name} refuses the key in {provider.key}: {problem}"
    if provider.name == "searxng":
        return f"SearXNG refuses the search: {problem}; enable json under search.formats in its settings.yml"
    return f"{provider.name} refuses the search: {problem}"


def _without(key: str, text: str) -> str:
    return text.replace(key, "***") if key else text


def _shown(hit: Hit, position: int) -> JSON:
    return {"title": hit.title, "url": hit.url, "description": hit.description, "position": position}
