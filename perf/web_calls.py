"""Cost of web and browser calls, beside the same by hand: plain httpx and trafilatura, plain Playwright.

    pip install httpx && python perf/web_calls.py [ROUNDS]

Everything comes from a website in this process. The tools do more than what stands beside them: they check
every address, keep to limits, read documents in a process of their own, wait until a page has settled and
print it as a tree with refs. It prints medians of wall time in milliseconds and their ratio; all take turns,
as the load of a machine varies.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import trafilatura
from aiohttp import web
from playwright.async_api import async_playwright

from environments.tools.base import ToolSettings, ToolState
from environments.tools.browser.chromium import find_program
from environments.tools.registry import all_tools
from environments.tools.toolbox import Toolbox
from environments.tools.web.settings import WebSettings

Call = Callable[[], Awaitable[Any]]

PARAGRAPH = "Moss grows where it is damp, and nobody who has looked at it for long would call it plain. " * 6
ARTICLE = f"""<html><head><title>Moss</title></head><body><nav><a href="/">Home</a></nav>
<article><h1>Moss</h1>
{"".join(f"<h2>Part {n}</h2><p>{PARAGRAPH}</p>" for n in range(30))}</article>
<button onclick="this.textContent = 'Done ' + (window.n = (window.n || 0) + 1)">Press</button>
</body></html>"""
FOUND = {"results": [{"title": f"Moss {n}", "url": f"http://m/{n}", "content": PARAGRAPH} for n in range(20)]}


async def website(stack: AsyncExitStack) -> str:
    """A site with an article at any address, and a search engine of the form of SearXNG at /search."""

    async def search(request: web.Request) -> web.Response:
        return web.json_response(FOUND)

    async def article(request: web.Request) -> web.Response:
        return web.Response(text=ARTICLE, content_type="text/html")

    async def robots(request: web.Request) -> web.Response:
        raise web.HTTPNotFound

    app = web.Application()
    app.router.add_get("/search", search)
    app.router.add_get("/robots.txt", robots)
    app.router.add_get("/{path:.*}", article)
    runner = web.AppRunner(app)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"127.0.0.1:{runner.addresses[0][1]}"


def bare_web(client: httpx.AsyncClient, site: str) -> dict[str, Call]:
    """The web calls by hand."""

    async def extract() -> None:
        page = (await client.get(f"http://{site}/article")).text
        assert trafilatura.extract(page, output_format="markdown", include_links=True)

    async def search() -> None:
        assert (await client.get(f"http://{site}/search", params={"q": "moss", "format": "json"})).json()

    return {"web_extract": extract, "web_search": search}


async def bare_browser(stack: AsyncExitStack, site: str) -> dict[str, Call]:
    """The browser calls by hand, in a Chromium of their own."""
    playwright = await stack.enter_async_context(async_playwright())
    browser = await playwright.chromium.launch(executable_path=find_program(None), chromium_sandbox=False)
    stack.push_async_callback(browser.close)
    page = await browser.new_page()

    async def navigate() -> None:
        await page.goto(f"http://{site}/article", wait_until="domcontentloaded")
        assert await page.locator("body").aria_snapshot()

    async def snapshot() -> None:
        assert await page.locator("body").aria_snapshot()

    async def click() -> None:
        await page.get_by_role("button").click()

    return {"browser_navigate": navigate, "browser_snapshot": snapshot, "browser_click": click}


def tool_calls(box: Toolbox, site: str) -> dict[str, Call]:
    """The tools."""

    def call(name: str, **arguments: Any) -> Call:
        async def one() -> None:
            outcome = await box.call(name, arguments)
            assert outcome.error is None, outcome.content

        return one

    refs: list[str] = []

    async def click() -> None:
        if not refs:
            shown = (await box.call("browser_snapshot", {})).result or {}
            refs.append(shown["snapshot"].partition('button "')[2].partition("[ref=")[2].partition("]")[0])
        await call("browser_click", ref=refs[0])()

    return {
        "web_extract": call("web_extract", urls=[f"http://{site}/article"]),
        "web_search": call("web_search", query="moss"),
        "browser_navigate": call("browser_navigate", url=f"http://{site}/article"),
        "browser_snapshot": call("browser_snapshot"),
        "browser_click": click,
    }


async def measure(rounds: int) -> None:
    """Print a line per call."""
    async with AsyncExitStack() as stack:
        site = await website(stack)
        client = await stack.enter_async_context(httpx.AsyncClient())
        bare = {**bare_web(client, site), **await bare_browser(stack, site)}
        boxes = {}
        for cache in ("off", "record"):
            settings = WebSettings(
                provider="searxng", url=f"http://{site}", allowed_hosts=(f"{site}",), cache=cache
            )
            state = ToolState(sandbox=None, settings=ToolSettings(web=settings))  # type: ignore[arg-type]
            stack.push_async_callback(state.shared.close)
            stack.push_async_callback(state.close)
            boxes[cache] = tool_calls(Toolbox(list(all_tools().values()), state), site)
        tools = boxes["off"]
        kept = {f"{name}, kept": (name, boxes["record"][name]) for name in ("web_extract", "web_search")}
        lines = {name: (bare[name], tools[name]) for name in bare}
        lines |= {name: (bare[plain], call) for name, (plain, call) in kept.items()}
        print(f"{'call':<20} {'by hand':>9} {'tool':>9} {'ratio':>6}")
        for name, (by_hand, tool) in lines.items():
            times = await in_turns(by_hand, tool, rounds)
            print(f"{name:<20} {times[0]:>9.2f} {times[1]:>9.2f} {times[1] / times[0]:>6.2f}", flush=True)


async def in_turns(first: Call, second: Call, rounds: int) -> tuple[float, float]:
    """Medians of both in milliseconds; the first two rounds warm up."""
    taken: list[tuple[float, float]] = []
    for _ in range(rounds + 2):
        started = time.perf_counter()
        await first()
        between = time.perf_counter()
        await second()
        taken.append((between - started, time.perf_counter() - between))
    medians = [statistics.median(column) * 1000 for column in zip(*taken[2:], strict=True)]
    return medians[0], medians[1]


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
