"""Search providers behind one interface: what to ask, and how to read the answer.

A provider is data and two functions. Keys come from the environment at the moment of a call and are
written nowhere.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

from environments.errors import UnknownName
from environments.tools.asking import Call
from environments.tools.web.settings import WebSettings

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hit:
    """One result."""

    title: str
    url: str
    description: str


@dataclass(frozen=True, slots=True)
class Provider:
    """``ask(base, query, number, page, key)`` makes the request, ``read`` the hits of its answer.

    ``base`` is None where every installation has an address of its own. ``key`` names the variable
    with the key, ``address`` the one with the address; ``per_page`` is the most that one request
    gives and ``pages`` how many requests may follow each other.
    """

    name: str
    ask: Callable[[str, str, int, int, str], Call]
    read: Callable[[str], list[Hit]]
    base: str | None
    key: str | None = None
    address: str | None = None
    per_page: int = 100
    pages: int = 1


class Unreadable(Exception):
    """An answer that is not what the provider's documentation says; the text says what it is."""


def choose(settings: WebSettings, environment: Mapping[str, str]) -> Provider | str:
    """The provider of the configuration or of the first key there is; else what is missing."""
    if settings.provider is not None:
        if settings.provider not in PROVIDERS:
            raise UnknownName("search provider", settings.provider, PROVIDERS, "web_search_provider")
        provider = PROVIDERS[settings.provider]
        return _lacks(provider, settings, environment) or provider
    for provider in PROVIDERS.values():
        if (provider.key or provider.address) and _lacks(provider, settings, environment) is None:
            return provider
    variables = ", ".join(filter(None, (p.key or p.address for p in PROVIDERS.values())))
    return (
        f"needs a search provider: set one of {variables}, or --env.web_search_provider duckduckgo (no key)"
    )


def address(provider: Provider, settings: WebSettings, environment: Mapping[str, str]) -> str | None:
    """Where the provider's API is, without a slash at the end."""
    own = environment.get(provider.address) if provider.address else None
    # An address without a provider's name beside it is SearXNG's, which cannot do without one.
    configured = settings.url if settings.provider == provider.name or provider.base is None else None
    found = configured or own or provider.base
    return found.rstrip("/") if found else None


def _lacks(provider: Provider, settings: WebSettings, environment: Mapping[str, str]) -> str | None:
    where = address(provider, settings, environment)
    if where is None:
        return f"needs the address of {provider.name}: set {provider.address} or --env.web_search_url"
    if not where.startswith(("http://", "https://")):
        return f"needs an http address of {provider.name}, not {where[:100]!r}"
    # An installation of one's own may do without a key.
    if provider.key and not environment.get(provider.key) and where == provider.base:
        return f"needs the key of {provider.name}: set {provider.key} in the environment"
    return None


def _exa(base: str, query: str, number: int, page: int, key: str) -> Call:
    body = {"query": query, "numResults": number, "contents": {"highlights": True}}
    return Call(f"{base}/search", "POST", {"x-api-key": key}, body=body, key=key)


def _tavily(base: str, query: str, number: int, page: int, key: str) -> Call:
    return Call(f"{base}/search", "POST", _bearer(key), body={"query": query, "max_results": number}, key=key)


def _firecrawl(base: str, query: str, number: int, page: int, key: str) -> Call:
    return Call(f"{base}/v2/search", "POST", _bearer(key), body={"query": query, "limit": number}, key=key)


def _brave(base: str, query: str, number: int, page: int, key: str) -> Call:
    parameters = {"q": query, "count": str(number), "offset": str(page)}
    return Call(
        f"{base}/res/v1/web/search", headers={"X-Subscription-Token": key}, parameters=parameters, key=key
    )


def _searxng(base: str, query: str, number: int, page: int, key: str) -> Call:
    return Call(f"{base}/search", parameters={"q": query, "format": "json", "pageno": str(page + 1)}, key=key)


def _duckduckgo(base: str, query: str, number: int, page: int, key: str) -> Call:
    return Call(f"{base}/html/", "POST", form={"q": query}, key=key)


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _results(*path: str) -> Callable[[str], list[Hit]]:
    """A reader of JSON with its list of results at ``path``."""

    def read(text: str) -> list[Hit]:
        import orjson

        try:
            value: Any = orjson.loads(text)
        except ValueError:
            raise Unreadable(f"what is no JSON: {text[:200]!r}") from None
        for key in path:
            value = value.get(key, []) if isinstance(value, dict) else value
        if not isinstance(value, list):
            raise Unreadable(f"no list of results at {'.'.join(path)}")
        return [hit for hit in map(_hit, value) if hit is not None]

    return read


def _hit(entry: Any) -> Hit | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("url"), str):
        return None
    highlights = entry.get("highlights")
    joined = " ... ".join(map(str, highlights)) if isinstance(highlights, list) else ""
    texts = (entry.get(key) for key in ("description", "content", "snippet", "summary", "text"))
    description = next((text for text in (joined, *texts) if isinstance(text, str) and text), "")
    return Hit(plain(str(entry.get("title") or "")), entry["url"], plain(description))


def plain(text: str) -> str:
    """Text without marks and line breaks, at most a thousand characters."""
    return " ".join(html.unescape(re.sub(r"<[^<>]{0,200}>", "", text)).split())[:1000]


class _DuckDuckGo(HTMLParser):
    """Reads the results page for browsers without JavaScript."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str]] = []
        self.challenged = False
        self.empty = False
        self._part: str | None = None

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        classes = (given.get("class") or "").split()
        if "result__a" in classes:
            self.found.append({"url": _target(given.get("href") or ""), "title": "", "description": ""})
            self._part = "title"
        elif "result__snippet" in classes and self.found:
            self._part = "description"
        elif any(name.startswith("anomaly") for name in classes):
            self.challenged = True
        elif "no-results" in classes:
            self.empty = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("a", "div", "td"):
            self._part = None

    def handle_data(self, data: str) -> None:
        if self._part is not None:
            self.found[-1][self._part] += data


def _target(link: str) -> str:
    """The address behind a link that counts clicks."""
    parts = urlsplit(link)
    return parse_qs(parts.query).get("uddg", [link])[0]


def _read_duckduckgo(text: str) -> list[Hit]:
    parser = _DuckDuckGo()
    parser.feed(text)
    if not parser.found and not parser.empty:
        raise Unreadable(
            "it asks whether we are human; use a provider with a key"
            if parser.challenged
            else "a page without results"
        )
    advertisements = "duckduckgo.com/y.js"
    return [
        Hit(plain(found["title"]), found["url"], plain(found["description"]))
        for found in parser.found
        if found["url"].startswith("http") and advertisements not in found["url"]
    ]


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider("exa", _exa, _results("results"), "https://api.exa.ai", "EXA_API_KEY"),
        Provider(
            "tavily", _tavily, _results("results"), "https://api.tavily.com", "TAVILY_API_KEY", per_page=20
        ),
        Provider(
            "firecrawl",
            _firecrawl,
            _results("data", "web"),
            "https://api.firecrawl.dev",
            "FIRECRAWL_API_KEY",
            "FIRECRAWL_API_URL",
        ),
        Provider(
            "brave",
            _brave,
            _results("web", "results"),
            "https://api.search.brave.com",
            "BRAVE_API_KEY",
            per_page=20,
            pages=5,
        ),
        Provider("searxng", _searxng, _results("results"), None, None, "SEARXNG_URL", pages=5),
        Provider("duckduckgo", _duckduckgo, _read_duckduckgo, "https://html.duckduckgo.com", pages=1),
    )
}
"""In the order in which keys are looked for."""
