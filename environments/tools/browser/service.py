"""The run's Chromium: started when first needed, started anew after a crash, ended with the run.

Its files are in a directory that the run keeps locked; where the run was killed the browser ends by
itself (its control pipe breaks), and the next run removes the files.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from environments.errors import EngineUnusable
from environments.sandboxes.local.run_directory import RunDirectory
from environments.tools.base import ToolState
from environments.tools.browser.chromium import (
    Way,
    end_processes,
    find_program,
    missing,
    variables,
    ways,
    write_launcher,
)
from environments.tools.browser.settings import BrowserSettings
from environments.tools.web.guard import Guard, GuardedProxy
from environments.waiting import waiting

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright

logger = logging.getLogger(__name__)

VIEWPORT = (1280, 800)

_NOWHERE = "http://127.0.0.1:9"
"""Proxy of whatever does not belong to a rollout's context: nobody listens there."""

_ARGUMENTS = (
    # Every connection goes through the rollout's proxy, which has the guard; what cannot is cut off.
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-quic",
    "--dns-prefetch-disable",
    "--no-pings",
    "--mute-audio",
    "--disable-crash-reporter",
)
_START_PATIENCE = 60.0
_END_PATIENCE = 15.0


@dataclass(slots=True)
class Context:
    """What one rollout has of the browser."""

    context: BrowserContext
    browser: Browser
    proxy: GuardedProxy

    @property
    def alive(self) -> bool:
        """Whether the browser that it belongs to still runs."""
        return bool(self.browser.is_connected())


class BrowserService:
    """One per run. Made inside the event loop."""

    def __init__(self, settings: BrowserSettings, guard: Guard) -> None:
        self.guard = guard
        self.starts = 0
        """How often the browser was started."""
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_contexts)
        self._starting = asyncio.Lock()
        self._directory: RunDirectory | None = None
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._way: Way | None = None

    async def open(self) -> Context:
        """An isolated context. Waits while too many are in use; give it back with ``release``."""
        with waiting():
            await self._slots.acquire()
        try:
            return await self._open()
        except BaseException:  # cancelled, too: nothing half-made stays
            self._slots.release()
            raise

    async def release(self, context: Context) -> None:
        """Close a context and all its pages."""
        from playwright.async_api import Error

        try:
            with suppress(Error, TimeoutError):  # it was gone already, or its browser hangs
                async with asyncio.timeout(_END_PATIENCE):
                    await context.context.close()
        finally:
            self._slots.release()
            await context.proxy.close()

    async def close(self) -> None:
        """End the browser and remove its files."""
        async with self._starting:
            await self._end()
            directory, self._directory = self._directory, None
            if directory is not None:
                await asyncio.to_thread(directory.remove)

    async def _open(self) -> Context:
        from playwright.async_api import Error

        proxy = GuardedProxy(self.guard)
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        port = listener.getsockname()[1]
        proxy.listen(listener)
        try:
            for last in (False, True):
                browser = await self._running()
                try:
                    context = await browser.new_context(
                        proxy={"server": f"http://127.0.0.1:{port}", "bypass": "<-loopback>"},
                        viewport={"width": VIEWPORT[0], "height": VIEWPORT[1]},
                        accept_downloads=False,
                        service_workers="block",  # they would outlive the page that a model looks at
                        ignore_https_errors=False,
                    )
                    return Context(context, browser, proxy)
                except Error:
                    if last:
                        raise
                    await self._lost(browser)
            raise AssertionError("unreachable")
        except BaseException:  # cancelled, too: nothing half-made stays
            await proxy.close()
            raise

    async def _running(self) -> Browser:
        async with self._starting:
            if self._browser is None or not self._browser.is_connected():
                await self._end()
                self._browser = await self._start()
            return self._browser

    async def _lost(self, browser: Browser) -> None:
        """A browser that answers no more: end it, unless another one runs already."""
        async with self._starting:
            if self._browser is browser:
                await self._end()

    async def _start(self) -> Browser:
        from playwright.async_api import Error, async_playwright

        program = find_program(self._settings.path)
        if program is None:
            raise EngineUnusable(f"the browser {missing(self._settings.path)}")
        if self._directory is None:
            self._directory = await asyncio.to_thread(RunDirectory, "browser")
        problem = ""
        for way in [self._way] if self._way is not None else ways():
            self.starts += 1
            launcher = write_launcher(self._directory.path, self.starts, program, way)
            try:
                async with asyncio.timeout(_START_PATIENCE):
                    if self._playwright is None:
                        self._playwright = await async_playwright().start()
                    browser = await self._playwright.chromium.launch(
                        executable_path=launcher,
                        artifacts_dir=self._directory.path / ".artifacts",
                        chromium_sandbox=way.sandbox,
                        env={**variables()},
                        args=list(_ARGUMENTS),
                        proxy={"server": _NOWHERE},
                        handle_sigint=False,
                        handle_sigterm=False,
                        handle_sighup=False,
                    )
            except (Error, OSError) as error:  # TimeoutError is one too
                problem = str(error).strip()
                logger.debug("the browser did not start without %s: %s", way.lacking, error)
                await self._end()
                continue
            if way.lacking and self._way is None:
                logger.warning("the browser runs without %s on this machine", way.lacking)
            self._way = way
            return browser
        raise EngineUnusable(f"the browser {program} cannot be started: {_last_lines(problem)}")

    async def _end(self) -> None:
        """End the browser and the driver beside it, whatever state they are in."""
        from playwright.async_api import Error

        browser, self._browser = self._browser, None
        playwright, self._playwright = self._playwright, None
        for thing in (browser.close if browser else None, playwright.stop if playwright else None):
            if thing is not None:
                # Foreign programs that hang or are gone already: the end of the run must not depend on them.
                with suppress(Error, OSError, TimeoutError):
                    async with asyncio.timeout(_END_PATIENCE):
                        await thing()
        if browser is not None and self._directory is not None:
            await asyncio.to_thread(end_processes, self._directory.path)


async def browser_of(state: ToolState) -> BrowserService:
    """The browser of the run that this rollout belongs to."""

    async def make() -> BrowserService:
        await asyncio.to_thread(import_module, "playwright.async_api")  # takes long; others go on meanwhile
        return BrowserService(state.settings.browser, Guard(state.settings.web.allowed_hosts))

    return await state.shared.get("browser", make)


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[:1] + lines[-3:])[:600]
