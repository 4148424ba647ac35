"""What the web tools of a run have together: connections, the recording, the readers of pages."""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path

from environments.tools.base import ToolState
from environments.tools.web.cache import WebCache
from environments.tools.web.fetching import Fetcher
from environments.tools.web.guard import Guard
from environments.tools.web.settings import WebSettings
from environments.tools.web.text import TextReader


class Web:
    """One per run. Made inside the event loop."""

    def __init__(self, settings: WebSettings, run_directory: Path | None) -> None:
        directory = (
            Path(settings.cache_directory).expanduser()
            if settings.cache_directory
            else run_directory / "web"
            if run_directory is not None
            else None
        )
        self.cache = WebCache(settings.cache, directory)
        self.fetcher = Fetcher(
            Guard(settings.allowed_hosts),
            timeout=settings.timeout,
            max_bytes=settings.max_bytes,
            robots=settings.robots,
        )
        self.reader = TextReader()

    async def close(self) -> None:
        """End connections and processes."""
        try:
            await self.reader.close()
        finally:
            await self.fetcher.close()


async def web_of(state: ToolState) -> Web:
    """The web of the run that this rollout belongs to."""

    async def make() -> Web:
        await asyncio.to_thread(import_module, "aiohttp")  # takes long; others go on meanwhile
        return Web(state.settings.web, state.shared.directory)

    return await state.shared.get("web", make)
