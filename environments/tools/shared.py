"""What the tools of all rollouts of a run share: a browser, a cache, a server process.

::

    browser = await state.shared.get("browser", open_browser)

The first to ask makes it, the others wait for it, the end of the run closes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast


class Closable(Protocol):
    """Something that holds more than memory."""

    async def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

logger = logging.getLogger(__name__)


class SharedResources:
    """Resources by name. ``directory`` is the run's own, None where the run keeps nothing on disk."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory
        self._made: dict[str, Closable] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._closed = False

    async def get(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """The resource of this name, made at the first call; a failure to make it is not remembered."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            if self._closed:
                raise RuntimeError(f"the run is over; its {name} is closed")
            if name not in self._made:
                self._made[name] = await make()
            return cast(T, self._made[name])

    def peek(self, name: str) -> Any:
        """The resource if it has been made, else None."""
        return self._made.get(name)

    async def close(self) -> None:
        """Close all of them, the last made first. Idempotent; waits for those still being made."""
        self._closed = True
        for lock in list(self._locks.values()):
            async with lock:
                continue
        while self._made:
            name, resource = self._made.popitem()
            try:
                await resource.close()
            except Exception as error:  # noqa: BLE001 - foreign programs end as they like; the rest must be closed too
                logger.warning("the shared %s could not be closed: %s", name, error)
