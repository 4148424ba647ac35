"""When a page has reacted: nothing of what it asked for is on its way, and its content has stopped changing.

Nobody can see the timers of a page, so a page with scripts has a short time in which to begin something; one
without them is done when it has loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Request

PATIENCE = 1.5
"""Seconds that a page which never rests is waited for, beside its loading."""

_AFTER_LOADING = 300
_AFTER_ACTION = 50
_PAUSE = 0.02
_ENDLESS = ("ping", "eventsource", "websocket", "media")
"""Kinds of requests that a page does not wait for, or that have no end."""

# Resolves when nothing that a snapshot would show has changed for so many milliseconds. Styles are left out:
# animations change them for ever.
_CALM = """([quiet, most, loading]) => new Promise(done => {
  const active = 'script:not([type="application/ld+json"]):not([type="application/json"]), iframe, frame, ' +
    'object, embed, [onload], [onerror], meta[http-equiv="refresh" i]';
  if (loading && !document.querySelector(active)) return done();
  let timer = setTimeout(done, quiet);
  const observer = new MutationObserver(() => { clearTimeout(timer); timer = setTimeout(end, quiet); });
  const end = () => { observer.disconnect(); done(); };
  observer.observe(document, {subtree: true, childList: true, characterData: true,
    attributeFilter: ["class", "hidden", "disabled", "open", "aria-hidden", "aria-expanded"]});
  setTimeout(end, most);
})"""


class Traffic:
    """The requests of a context that have no answer yet."""

    def __init__(self, context: BrowserContext) -> None:
        self._running: set[Request] = set()
        self._before: set[Request] = set()
        self._ended = asyncio.Event()
        context.on("request", self._on_start)
        context.on("requestfinished", self._on_end)
        context.on("requestfailed", self._on_end)

    def mark(self) -> None:
        """From now on only what begins later counts; what is on its way may be so for ever."""
        self._before = set(self._running)

    @property
    def busy(self) -> bool:
        """Whether anything that began since the mark is on its way."""
        return not self._running <= self._before

    async def rest(self) -> None:
        """Wait until nothing is on its way."""
        while self.busy:
            self._ended.clear()
            await self._ended.wait()

    def _on_start(self, request: Request) -> None:
        if request.resource_type not in _ENDLESS:
            self._running.add(request)

    def _on_end(self, request: Request) -> None:
        self._running.discard(request)
        self._before.discard(request)
        self._ended.set()


async def calm_down(front: Callable[[], Page], traffic: Traffic, *, loading: bool) -> None:
    """Wait until the page in front is calm. Raises ``TimeoutError`` where it takes too long.

    ``loading``: it has just been loaded, so what it shows at first may be on its way by scripts.
    """
    from playwright.async_api import Error

    quiet = _AFTER_LOADING if loading else _AFTER_ACTION
    async with asyncio.timeout(PATIENCE):
        while True:
            page = front()
            with suppress(Error):  # it went elsewhere, or closed itself, in the middle of this
                await page.evaluate(_CALM, [quiet, PATIENCE * 1000, loading])
                if front() is page and not traffic.busy:
                    return
            await asyncio.sleep(_PAUSE)
            await traffic.rest()
