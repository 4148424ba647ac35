"""Rollouts that use one browser on a real site of this machine, and what they may leave behind."""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from servers.web_site import WebSite
from tools.plain_sandbox import PlainSandbox

from environments.tools.base import ToolSettings, ToolState
from environments.tools.browser.settings import BrowserSettings
from environments.tools.browser.tools import TOOLS
from environments.tools.shared import SharedResources
from environments.tools.toolbox import Toolbox
from environments.tools.web.settings import WebSettings


class User:
    """A rollout's hands: calls tools as a model does."""

    def __init__(self, site: WebSite, shared: SharedResources, root: Path, **settings: Any) -> None:
        self.state = ToolState(
            PlainSandbox(root),
            ToolSettings(
                web=WebSettings(allowed_hosts=(site.host,)),
                browser=BrowserSettings(**{"timeout": 10, **settings}),
            ),
            shared=shared,
        )
        self.toolbox = Toolbox(TOOLS, self.state)

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((await self.toolbox.call(f"browser_{name}", arguments)).content)
        return result

    async def ref(self, text: str) -> str:
        shown = (await self("snapshot", full=True))["snapshot"]
        found = re.search(re.escape(text) + r"[^\n]*?\[ref=(\w+)\]", shown)
        assert found, f"{text} not in:\n{shown}"
        return found[1]

    async def click(self, text: str) -> dict[str, Any]:
        return await self("click", ref=await self.ref(text))

    async def value(self, expression: str) -> Any:
        return (await self("console", expression=expression)).get("result")


Work = Callable[[WebSite, Callable[..., User]], Awaitable[None]]


def on_site(work: Work, tmp_path: Path) -> None:
    """Run ``work`` with a site and a maker of users who share one browser; nothing may be left of it."""

    async def main() -> None:
        shared = SharedResources()
        users: list[User] = []

        def user(**settings: Any) -> User:
            users.append(User(site, shared, tmp_path / str(len(users)), **settings))
            return users[-1]

        async with WebSite() as site:
            try:
                await work(site, user)
            finally:
                for each in users:
                    await each.toolbox.cleanup()
                await shared.close()

    before = leftovers()
    asyncio.run(main())
    assert leftovers() <= before


def leftovers() -> set[str]:
    """Files of browsers, ours or Playwright's."""
    temporary = Path(tempfile.gettempdir())
    ours = temporary.glob("hermes-environments-*/browser-*")
    return {str(path) for path in [*ours, *temporary.glob("playwright*")]}


def running(directory: str) -> list[int]:
    """Processes that have a profile in this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"--user-data-dir={directory}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def chromium_processes(browser: Any) -> list[int]:
    return running(str(browser._directory.path))
