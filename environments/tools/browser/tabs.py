"""The tabs of one rollout: its pages, what they print, their dialogs, what they wanted to download."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from environments.tools.base import JSON
from environments.tools.browser.liveness import reacts, stop_scripts
from environments.tools.browser.service import BrowserService, Context
from environments.tools.browser.settling import Traffic, calm_down

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, ConsoleMessage, Dialog, Download, Page
    from playwright.async_api import Error as PlaywrightError

MOST_TABS = 8
MOST_MESSAGES = 200

_LONGEST_MESSAGE = 2_000
_SETTLE_PATIENCE = 10.0
_GRACE = 2.0

T = TypeVar("T")


class BrowserProblem(Exception):
    """Something that the model has to know or can do something about; the text is for it."""


@dataclass(slots=True)
class OpenDialog:
    """A dialog that waits for an answer."""

    id: str
    page: Page
    dialog: Dialog

    def shown(self) -> JSON:
        """For the model."""
        kind, message = self.dialog.type, self.dialog.message[:_LONGEST_MESSAGE]
        shown = {"dialog_id": self.id, "type": kind, "message": message}
        return {**shown, "default": self.dialog.default_value} if kind == "prompt" else shown


@dataclass(slots=True)
class Messages:
    """What the pages have printed since it was last cleared."""

    console: deque[JSON] = field(default_factory=lambda: deque(maxlen=MOST_MESSAGES))
    errors: deque[JSON] = field(default_factory=lambda: deque(maxlen=MOST_MESSAGES))

    def clear(self) -> None:
        """Forget all."""
        self.console.clear()
        self.errors.clear()


class Tabs:
    """The browser as one rollout sees it: pages in the order of opening, one of them in front."""

    def __init__(self, service: BrowserService, timeout: float) -> None:
        self.messages = Messages()
        self.dialogs: list[OpenDialog] = []
        self.refs: frozenset[str] = frozenset()
        """Refs of the last snapshot."""
        self.busy = asyncio.Lock()
        """Held by a call that uses the pages."""
        self.timeout = timeout
        self._service = service
        self._context: Context | None = None
        self._traffic: Traffic | None = None
        self._pages: list[Page] = []
        self._front: Page | None = None
        self._lines: dict[Page, CDPSession] = {}
        self._events: list[str] = []
        self._crashed: str | None = None
        self._dialog_count = 0
        self._dialog_opened = asyncio.Event()
        self._suspended: set[asyncio.Future[Any]] = set()
        self._reactions: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def guard(self) -> Any:
        """Which hosts may be reached."""
        return self._service.guard

    @property
    def pages(self) -> list[Page]:
        """Pages that are open."""
        return [page for page in self._pages if not page.is_closed()]

    @property
    def page(self) -> Page:
        """The page in front. Raises ``BrowserProblem`` where there is none."""
        self._notice_crash()
        if self._front is None or self._front.is_closed():
            self._front = self.pages[-1] if self.pages else None
        if self._front is None:
            raise BrowserProblem("no page is open; open one with browser_navigate")
        return self._front

    def free_page(self) -> Page:
        """The page in front, where no dialog keeps it from reacting."""
        page = self.page
        waiting = next((dialog for dialog in self.dialogs if dialog.page is page), None)
        if waiting is not None:
            raise BrowserProblem(
                f"a dialog is open and the page waits for it: {waiting.shown()}; answer with browser_dialog"
            )
        return page

    async def start(self) -> Page:
        """The page in front, or a new one in a new context where there is none."""
        if self._closed:
            raise BrowserProblem("the browser of this rollout is closed")
        with suppress(BrowserProblem):
            return self.page
        if self._context is None:
            self._context = await self._service.open()
            self._context.context.set_default_timeout(self.timeout * 1000)
            self._context.context.on("page", self._on_page)
            self._traffic = Traffic(self._context.context)
        self._front = await self._context.context.new_page()
        return self._front

    def take_events(self) -> list[str]:
        """What has happened by itself since it was last asked: tabs, downloads, crashes."""
        events, self._events = self._events, []
        return events

    async def act(self, action: Awaitable[T], patience: float | None = None) -> T | None:
        """Await an action of a page; None where a dialog opened that has to be answered first.

        Raises ``BrowserProblem`` where the page does not react within ``patience`` seconds: a script that
        runs without end holds everything up, and is stopped then.
        """
        self._dialog_opened.clear()
        running = asyncio.ensure_future(action)
        opened = asyncio.ensure_future(self._dialog_opened.wait())
        limit = patience if patience is not None else self.timeout + _GRACE
        try:
            await asyncio.wait({running, opened}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:  # cancelled, too: the action ends with whoever waits for it
            running.cancel()
            raise
        finally:
            opened.cancel()
        if running.done():
            return running.result()
        if not self._dialog_opened.is_set():
            running.cancel()
            raise BrowserProblem(await self.unresponsive(f"the page did not react within {limit:g} s"))
        self._suspended.add(running)
        running.add_done_callback(self._resumed)
        return None

    async def ask(self, question: Awaitable[T]) -> T:
        """As ``act``, for what cannot go on without the answer."""
        answer = await self.act(question)
        if answer is None and self.dialogs:
            raise BrowserProblem("a dialog opened in the middle of this; answer it with browser_dialog")
        return answer  # type: ignore[return-value]

    async def unresponsive(self, problem: str) -> str:
        """What to say of a page that did not react; a script that runs without end is stopped."""
        page = self._front
        if page is None or page.is_closed() or self.dialogs or await reacts(page):
            return problem
        if await stop_scripts(page, self._lines.get(page)):
            return f"{problem}: a script ran without end, and was stopped"
        return f"{problem} and cannot be woken; browser_navigate opens another in its place"

    async def ready(self) -> Page:
        """A page that can go elsewhere: the one in front, or another in its place where that is stuck."""
        page = await self.start()
        waits = any(dialog.page is page for dialog in self.dialogs)
        if not waits and (await reacts(page) or await stop_scripts(page, self._lines.get(page))):
            return page
        known = len(self._events)
        self._forget(page)
        self._front = None
        self.later(page.close())
        assert self._context is not None
        self._front = await self._context.context.new_page()
        del self._events[known:]  # of the new tab
        return self._front

    async def settle(self, *, loading: bool = False) -> None:
        """Give the page time to react: to load if it loads, then to come to rest if that is soon."""
        from playwright.async_api import Error

        if self.dialogs or self._traffic is None:
            return
        with suppress(
            Error, BrowserProblem
        ):  # it loads for ever, or has closed itself: look at what is there
            patience = min(_SETTLE_PATIENCE, self.timeout) * 1000
            await self.act(self.page.wait_for_load_state("load", timeout=patience))
            if not self.dialogs:
                await self._or_dialog(calm_down(lambda: self.page, self._traffic, loading=loading))
                await self.act(self.page.wait_for_load_state("load", timeout=patience))

    async def _or_dialog(self, calm: Coroutine[Any, Any, None]) -> None:
        """Wait for a page to be calm, or for a dialog, on which it would never be; both may fail."""
        self._dialog_opened.clear()
        waits = [asyncio.ensure_future(calm), asyncio.ensure_future(self._dialog_opened.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    def begin(self) -> None:
        """Something is done to the page now: only what follows from it is waited for."""
        if self._traffic is not None:
            self._traffic.mark()

    async def answer(self, dialog: OpenDialog, *, accept: bool, text: str | None) -> None:
        """Answer a dialog; the page goes on."""
        self.dialogs.remove(dialog)
        if accept:
            await (dialog.dialog.accept(text) if text is not None else dialog.dialog.accept())
        else:
            await dialog.dialog.dismiss()

    async def close(self) -> None:
        """Close all pages. Idempotent."""
        self._closed = True
        await self._drop()

    async def cause(self, problem: str) -> str:
        """What to tell the model of a problem: of a crash, if that is behind it."""
        await self.drop_crashed()
        crashed, self._crashed = self._crashed, None
        if crashed is None and "has been closed" in problem:
            return "the tab closed in the middle of this; look at what is left with browser_snapshot"
        return crashed or problem

    async def give_up(self) -> str:
        """Drop a browser that does not answer; what to tell the model."""
        await self._drop()
        return "the browser does not answer; its pages are lost. Open the page again with browser_navigate"

    async def drop_crashed(self) -> None:
        """Give a context back whose browser is gone."""
        if self._context is None or (self.pages and self._context.alive):
            return
        if not await self._answers(self._context):
            self._crashed = (
                "the browser crashed; its pages are lost. Open the page again with browser_navigate"
            )
            await self._drop()

    async def _answers(self, context: Context) -> bool:
        """Whether a context can be used. Its pages are gone a moment before its browser is known to be."""
        from playwright.async_api import Error

        if not context.alive:
            return False
        try:
            await context.context.cookies("http://localhost")
        except Error:
            return False
        return True

    async def _drop(self) -> None:
        context, self._context = self._context, None
        self._traffic = None
        self._pages.clear()
        self._lines.clear()
        self._front = None
        self._events.clear()
        self.dialogs.clear()
        self.refs = frozenset()
        if context is not None:
            await self._service.release(context)
        for future in [*self._suspended, *self._reactions]:
            future.cancel()

    def _notice_crash(self) -> None:
        problem, self._crashed = self._crashed, None
        if problem is not None:
            raise BrowserProblem(problem)

    def _on_page(self, page: Page) -> None:
        if len(self.pages) >= MOST_TABS:
            self._events.append(f"a new tab was closed at once: {MOST_TABS} are open, which is the most")
            self.later(page.close())
            return
        if self._pages:
            self._events.append("a new tab opened and is in front now")
        self._pages.append(page)
        self._front = page
        self.later(self._connect(page))
        page.on("console", self._on_console)
        page.on("pageerror", self._on_error)
        page.on("dialog", lambda dialog: self._on_dialog(page, dialog))
        page.on("download", self._on_download)
        page.on("crash", self._on_crash)
        page.on("close", self._on_close)

    async def _connect(self, page: Page) -> None:
        self._lines[page] = await page.context.new_cdp_session(page)

    def _on_console(self, message: ConsoleMessage) -> None:
        text = message.text[:_LONGEST_MESSAGE]
        self.messages.console.append({"type": message.type, "text": text, "source": "console"})

    def _on_error(self, error: PlaywrightError) -> None:
        self.messages.errors.append({"message": str(error)[:_LONGEST_MESSAGE], "source": "exception"})

    def _on_dialog(self, page: Page, dialog: Dialog) -> None:
        self._dialog_count += 1
        self.dialogs.append(OpenDialog(f"d{self._dialog_count}", page, dialog))
        self._dialog_opened.set()

    def _on_download(self, download: Download) -> None:
        self._events.append(
            f"the page offered {download.suggested_filename[:200]!r} for download, which this browser does "
            f"not take ({download.url[:500]}); web_extract may read it"
        )

    def _on_crash(self, page: Page) -> None:
        self._crashed = "the page crashed and is gone. Open it again with browser_navigate"
        self._forget(page)
        self.later(page.close())

    def _on_close(self, page: Page) -> None:
        if page in self._pages and not self._closed:
            self._events.append("a tab closed itself")
        self._forget(page)

    def _forget(self, page: Page) -> None:
        self._pages = [other for other in self._pages if other is not page]
        self._lines.pop(page, None)
        self.dialogs = [dialog for dialog in self.dialogs if dialog.page is not page]

    def later(self, work: Awaitable[Any]) -> None:
        """Do something without waiting for it; the page may be gone before it is done."""
        from playwright.async_api import Error

        async def run() -> None:
            with suppress(Error):
                await work

        task = asyncio.ensure_future(run())
        self._reactions.add(task)
        task.add_done_callback(self._reactions.discard)

    def _resumed(self, action: asyncio.Future[Any]) -> None:
        self._suspended.discard(action)
        if not action.cancelled():
            action.exception()  # its caller has gone on long ago; the page shows what came of it
