"""The web tools against a real site of this machine, with the real readers of pages."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from servers.web_site import WebSite
from tools.bench import Bench

from environments.tools.base import ToolSettings, ToolState
from environments.tools.registry import get_tool
from environments.tools.toolbox import Toolbox
from environments.tools.web import extracting, text
from environments.tools.web.settings import WebSettings

pytestmark = pytest.mark.integration
pytest.importorskip("trafilatura")

Call = Callable[..., Awaitable[dict[str, Any]]]


def on_site(work: Callable[[WebSite, Call], Awaitable[Any]], tmp_path: Path, **settings: Any) -> Any:
    """Run ``work`` with a site and a caller of tools as a model calls them."""

    async def main() -> Any:
        async with WebSite() as site:
            web = WebSettings(
                **{"provider": "searxng", "url": site.url, "allowed_hosts": (site.host,), **settings}
            )
            state = ToolState(Bench(tmp_path).sandbox, ToolSettings(web=web))
            toolbox = Toolbox([get_tool("web_search"), get_tool("web_extract")], state)

            async def call(name: str, **arguments: Any) -> dict[str, Any]:
                result: dict[str, Any] = json.loads((await toolbox.call(name, arguments)).content)
                return result

            try:
                return await work(site, call)
            finally:
                await state.shared.close()

    return asyncio.run(main())


async def page(call: Call, url: str, **options: Any) -> dict[str, Any]:
    [result] = (await call("web_extract", urls=[url], **options))["results"]
    assert set(result) == {"url", "title", "content", "error"}
    return dict(result)


def test_pages_become_text(tmp_path: Path) -> None:
    async def work(site: WebSite, call: Call) -> None:
        article = await page(call, f"{site.url}/article")
        assert article["title"] == "Moss gardens"
        assert article["content"].startswith("# Moss gardens")
        assert "one hundred and twenty kinds" in " ".join(article["content"].split())
        assert "Imprint" not in article["content"]
        assert article["error"] is None
        document = await page(call, f"{site.url}/paper.pdf")
        assert document["content"] == "Spores travel far"
        assert (await page(call, f"{site.url}/late.pdf"))["title"] == "Moss gardens"
        assert (await page(call, f"{site.url}/data.json"))["content"] == '{"answer": 42}'
        assert "Schöne Grüße aus Köln" in (await page(call, f"{site.url}/latin"))["content"]
        assert (await page(call, f"{site.url}/meta"))["content"] == "苔の庭は緑です。"
        hop = await page(call, f"{site.url}/hop")
        assert hop["url"] == f"{site.url}/article"
        assert hop["content"] == article["content"]

    on_site(work, tmp_path)


def test_pages_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    async def work(site: WebSite, call: Call) -> None:
        for path, reason in [
            ("nothing", "HTTP status 404"),
            ("broken.pdf", "the PDF cannot be read"),
            ("file.bin", "binary content"),
            ("dot.png", "content of type image/png"),
            ("empty", "it may need JavaScript"),
            ("loop", "more than 10 redirects"),
            ("slow", "no answer within 1 s"),
            ("private/page", "robots.txt"),
            ("away?to=http://127.0.0.2/", "private network"),
            ("away?to=http://localhost:1/", "private network"),
            ("away?to=http://2130706433/", "private network"),
            ("away?to=file:///etc/passwd", "only http and https"),
            ("away?to=//[", "not a URL|no URL"),
        ]:
            result = await page(call, f"{site.url}/{path}")
            assert result["content"] == ""
            assert any(text in result["error"] for text in reason.split("|")), (path, result)
        assert site.hits["/private/page"] == 0

    on_site(work, tmp_path, timeout=1)


def test_a_huge_page_is_read_in_part(tmp_path: Path) -> None:
    async def work(site: WebSite, call: Call) -> None:
        huge = await page(call, f"{site.url}/huge", char_limit=2_000)
        assert huge["title"] == "Huge"
        assert "a larger char_limit shows more" in huge["content"]
        assert 2_000 < len(huge["content"]) < 2_200
        bomb = await page(call, f"{site.url}/bomb", char_limit=2_000)
        assert len(bomb["content"]) < 2_200

    on_site(work, tmp_path, max_bytes=300_000)


def test_of_a_page_that_is_too_much_the_start_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_SECONDS", 3)
    monkeypatch.setattr(extracting, "_START", 5_000)

    async def work(site: WebSite, call: Call) -> None:
        many = await page(call, f"{site.url}/many")
        assert many["error"] is None
        assert "small" in many["content"]
        assert many["content"].endswith("[Only the first 5,000 bytes of the page were read.]")

    on_site(work, tmp_path)


def test_rollouts_see_one_web_and_pay_once(tmp_path: Path) -> None:
    recording = str(tmp_path / "web")

    async def record(site: WebSite, call: Call) -> tuple[str, list[Any]]:
        urls = [f"{site.url}/article", f"{site.url}/sometimes"]
        answers = await asyncio.gather(*(call("web_extract", urls=urls[:1]) for _ in range(10)))
        assert site.hits["/article"] == 1
        assert all(answer == answers[0] for answer in answers)
        assert "503" in (await page(call, urls[1]))["error"]
        assert (await page(call, urls[1]))["error"] is None  # what passes was not kept
        assert len((await call("web_search", query="moss", limit=23))["data"]["web"]) == 23
        await call("web_search", query="moss", limit=23)
        assert len(site.searches) == 3
        return urls[0], answers[0]

    async def replay(site: WebSite, call: Call) -> None:
        assert await call("web_extract", urls=[url]) == answer
        assert len((await call("web_search", query="moss", limit=23))["data"]["web"]) == 23
        assert "not in the recording" in (await page(call, f"{site.url}/article"))["error"]
        assert not site.hits

    url, answer = on_site(record, tmp_path, cache_directory=recording)
    on_site(replay, tmp_path, cache_directory=recording, cache="replay", provider=None)


def test_robots_txt_that_cannot_be_had(tmp_path: Path) -> None:
    async def broken(site: WebSite, call: Call) -> None:
        site.robots = 503
        assert "robots.txt" in (await page(call, f"{site.url}/article"))["error"]

    async def absent(site: WebSite, call: Call) -> None:
        site.robots = 404
        assert (await page(call, f"{site.url}/private"))["error"] is None

    async def ignored(site: WebSite, call: Call) -> None:
        assert (await page(call, f"{site.url}/private"))["error"] is None
        assert site.hits["/robots.txt"] == 0

    on_site(broken, tmp_path)
    on_site(absent, tmp_path)
    on_site(ignored, tmp_path, robots=False)


@pytest.mark.parametrize(
    ("name", "arguments", "help"),
    [
        ("web_search", {}, "query is missing"),
        ("web_search", {"query": "  "}, "query is empty"),
        ("web_search", {"query": "x" * 3_000}, "3,000 characters"),
        ("web_search", {"query": "x", "limit": 0}, "limit must be at least 1"),
        ("web_search", {"query": "x", "limit": 101}, "limit must be at most 100"),
        ("web_search", {"query": ["x"]}, "query must be a string"),
        ("web_search", {"q": "x"}, "there is no parameter 'q'"),
        ("web_extract", {}, "urls is missing"),
        ("web_extract", {"urls": []}, "urls is empty"),
        ("web_extract", {"urls": ["a"] * 6}, "at most 5 entries"),
        ("web_extract", {"urls": [{}]}, "urls[0] must be a string"),
        ("web_extract", {"urls": "https://a.example"}, "urls must be an array"),
        ("web_extract", {"urls": ["a"], "char_limit": 1}, "char_limit must be at least 2000"),
    ],
)
def test_bad_arguments_are_explained(name: str, arguments: dict[str, Any], help: str, tmp_path: Path) -> None:
    async def work(site: WebSite, call: Call) -> None:
        assert help in (await call(name, **arguments))["error"]

    on_site(work, tmp_path)


@pytest.mark.parametrize(
    "url",
    ["", " ", "http://", "http:///x", "://x", "ftp://a/b", "javascript:alert(1)", "data:text/html,x", "a b c",
     "http://a:99999/", "http://[::1", "http://exa\u0000mple/", "file:///etc/passwd", "\u200b", "http://.../"],
)  # fmt: skip
def test_addresses_of_every_bad_kind_have_an_error_each(url: str, tmp_path: Path) -> None:
    async def work(site: WebSite, call: Call) -> None:
        bad, good = (await call("web_extract", urls=[url, f"{site.url}/article"]))["results"]
        assert bad["error"]
        assert bad["url"] == url
        assert good["error"] is None

    on_site(work, tmp_path)


def test_readers_of_pages_end_with_the_run_and_know_no_key(tmp_path: Path) -> None:
    """The run is killed; what reads pages for it must not stay."""
    code = f"""
import asyncio, os, sys
sys.path[:0] = {sys.path[:3]!r}
os.environ["EXA_API_KEY"] = "k"
from environments.tools.web.text import TextReader
async def main():
    reader = TextReader()
    await reader.read("text", b"x", None, "")
    worker = reader._idle.get_nowait(), reader._idle.get_nowait()
    print([w._process.pid for w in worker if w._process][0], flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        worker = int(program.stdout.readline())
        assert b"EXA_API_KEY" not in Path(f"/proc/{worker}/environ").read_bytes()
        program.kill()
    for _ in range(200):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{worker}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        asyncio.run(asyncio.sleep(0.05))
    pytest.fail("the worker lives on")
