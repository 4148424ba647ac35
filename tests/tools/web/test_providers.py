from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web as http

from environments.errors import ConfigError, EngineUnusable, UnknownName
from environments.tools import asking
from environments.tools.base import ToolSettings, ToolState
from environments.tools.web import providers, searching
from environments.tools.web.providers import PROVIDERS, Unreadable, choose
from environments.tools.web.settings import WebSettings
from environments.tools.web.tools import search_requirement

KEYS = {"exa": "EXA_API_KEY", "tavily": "TAVILY_API_KEY", "firecrawl": "FIRECRAWL_API_KEY"}
HIT = {"title": "T", "url": "https://a.example/", "description": "D"}
ANSWERS: dict[str, Any] = {
    "exa": {"results": [{"title": "T", "url": "https://a.example/", "highlights": ["D"]}]},
    "tavily": {"results": [{"title": "T", "url": "https://a.example/", "content": "D"}]},
    "firecrawl": {"success": True, "data": {"web": [HIT]}},
    "brave": {"web": {"results": [{**HIT, "description": "<strong>D</strong>"}]}},
    "searxng": {"results": [{"title": "T", "url": "https://a.example/", "content": "D"}]},
}
DUCK = """<div class="result">
<a class="result__a" href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fa.example%2F&rut=1"><b>T</b></a>
<a class="result__snippet" href="x">D</a></div>
<div><a class="result__a" href="https://duckduckgo.com/y.js?ad=1">Ad</a></div>"""


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in PROVIDERS.values():
        for name in (provider.key, provider.address):
            if name:
                monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(asking.random, "uniform", lambda *_: 0.0)


def test_the_first_key_decides_and_the_configuration_before_it() -> None:
    assert choose(WebSettings(), {"BRAVE_API_KEY": "k", "TAVILY_API_KEY": "k"}) is PROVIDERS["tavily"]
    assert choose(WebSettings(), {"SEARXNG_URL": "http://s"}) is PROVIDERS["searxng"]
    assert choose(WebSettings(url="http://s"), {}) is PROVIDERS["searxng"]
    assert choose(WebSettings("brave"), {"BRAVE_API_KEY": "k", "EXA_API_KEY": "k"}) is PROVIDERS["brave"]
    assert choose(WebSettings("duckduckgo"), {}) is PROVIDERS["duckduckgo"]
    assert choose(WebSettings("firecrawl"), {"FIRECRAWL_API_URL": "http://own"}) is PROVIDERS["firecrawl"]


@pytest.mark.parametrize(
    ("settings", "cure"),
    [
        (WebSettings(), "EXA_API_KEY.*SEARXNG_URL.*duckduckgo"),
        (WebSettings("brave"), "set BRAVE_API_KEY in the environment"),
        (WebSettings("searxng"), r"set SEARXNG_URL or --env\.web_search_url"),
        (WebSettings("searxng", "ftp://x"), "http address"),
    ],
)
def test_what_is_missing_is_named_with_its_cure(settings: WebSettings, cure: str) -> None:
    reason = search_requirement(ToolSettings(web=settings))
    assert reason is not None
    assert re.search(cure, reason)


def test_settings_that_cannot_be_are_errors() -> None:
    with pytest.raises(UnknownName, match="did you mean brave"):
        choose(WebSettings("brvae"), {})
    with pytest.raises(ConfigError, match="web_cache_directory"):
        search_requirement(ToolSettings(web=WebSettings(cache="replay")))
    with pytest.raises(ConfigError, match="no host"):
        search_requirement(ToolSettings(web=WebSettings(allowed_hosts=("http://x",))))
    assert search_requirement(ToolSettings(web=WebSettings(cache="replay", cache_directory="d"))) is None


class Server:
    """Answers as the providers do and remembers what it was asked."""

    def __init__(self, statuses: list[int] | None = None, text: str | None = None) -> None:
        self.statuses, self.text = list(statuses or []), text
        self.requests: list[dict[str, Any]] = []

    async def __aenter__(self) -> str:
        app = http.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        self.runner = http.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = http.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]

    async def __aexit__(self, *_: object) -> None:
        await self.runner.cleanup()

    async def answer(self, request: http.Request) -> http.Response:
        body = await request.text()
        self.requests.append(
            {"path": request.path, "query": dict(request.query), "headers": request.headers, "body": body}
        )
        if self.statuses and (status := self.statuses.pop(0)) != 200:
            return http.Response(status=status, text=f"no, {request.headers.get('x-api-key', '')}")
        if self.text is not None:
            return http.Response(text=self.text)
        by_path = {"/v2/search": "firecrawl", "/res/v1/web/search": "brave", "/html/": "duckduckgo"}
        name = by_path.get(request.path, "searxng" if request.method == "GET" else "exa")
        return http.Response(text=DUCK) if name == "duckduckgo" else http.json_response(ANSWERS[name])


async def search(server: Server, provider: str, query: str = "moss", limit: int = 5) -> dict[str, Any]:
    async with server as url:
        state = ToolState(None, ToolSettings(web=WebSettings(provider, url)))  # type: ignore[arg-type]
        try:
            return await searching.web_search(state, query, limit)
        finally:
            await state.shared.close()


@pytest.mark.parametrize("name", list(PROVIDERS))
def test_every_provider_is_asked_and_understood(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = PROVIDERS[name].key
    if key:
        monkeypatch.setenv(key, "k-123")
    server = Server()
    result = asyncio.run(search(server, name))
    assert result == {"success": True, "data": {"web": [{**HIT, "position": 1}]}}
    first = server.requests[0]
    assert "moss" in json.dumps(first["query"]) + first["body"]
    assert ("k-123" in str(dict(first["headers"]))) == bool(key)
    assert "k-123" not in json.dumps(first["query"]) + first["body"]


def test_a_failing_provider_is_asked_again_and_then_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(search(Server([503, 429, 500]), "searxng"))["success"]
    result = asyncio.run(search(Server([500] * 9), "searxng"))
    assert result["error"].startswith("the search provider searxng failed: 500")
    bad = Server([400] * 9)
    assert "400" in asyncio.run(search(bad, "searxng"))["error"]
    assert len(bad.requests) == 1


def test_a_refused_key_ends_the_run_and_is_shown_to_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EXA_API_KEY", "k-very-secret")
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises(EngineUnusable, match="refuses the key in EXA_API_KEY") as found,
    ):
        asyncio.run(search(Server([401]), "exa"))
    assert "secret" not in str(found.value)
    assert "secret" not in caplog.text


def test_an_answer_that_is_none_is_an_error_for_the_model() -> None:
    for text in ("<html>", '{"results": 5}', "[" * 100_000):
        result = asyncio.run(search(Server(text=text), "searxng"))
        assert not result["success"]
        assert "searxng answered with" in result["error"]
    long = asyncio.run(search(Server(text=json.dumps({"results": [HIT] * 100_000})), "searxng"))
    assert "more than 5,000,000 bytes" in long["error"]
    assert "human" in asyncio.run(search(Server(text="<div class=anomaly-modal>"), "duckduckgo"))["error"]
    with pytest.raises(Unreadable):
        providers.PROVIDERS["duckduckgo"].read("")


def test_a_recording_answers_without_provider_and_key(tmp_path: Path) -> None:
    async def main() -> list[dict[str, Any]]:
        server = Server()
        async with server as url:
            results = []
            for settings in (
                WebSettings("searxng", url, cache_directory=str(tmp_path)),
                WebSettings(cache="replay", cache_directory=str(tmp_path)),
            ):
                state = ToolState(None, ToolSettings(web=settings))  # type: ignore[arg-type]
                results += [
                    await searching.web_search(state, q) for q in (" moss \n gardens", "moss gardens")
                ]
                results.append(
                    await searching.web_search(state, "ferns")
                ) if settings.cache == "replay" else None
                await state.shared.close()
            assert len({request["query"]["q"] for request in server.requests}) == 1
        return results

    *same, missing = asyncio.run(main())
    assert all(result == same[0] for result in same)
    assert "not in the recording" in missing["error"]
