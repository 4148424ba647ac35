"""The image of a task: on the engine already, pulled once, or built once from a Dockerfile."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from environments.errors import ImageBuildFailed, ImageUnusable, SandboxError
from environments.sandboxes.docker.building import Context, read_context
from environments.sandboxes.docker.credentials import authentication_header, build_header
from environments.sandboxes.docker.engine import Engine, EngineError

logger = logging.getLogger(__name__)

_PULLS_AT_ONCE = 3
_PULL_TIMEOUT = 3600.0
_BUILD_TIMEOUT = 3600.0
_PULL_TRIES = 6
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 60.0
_PROGRESS_INTERVAL = 10.0
_PASSING = ("429", "toomanyrequests", "too many requests", "timeout", "connection reset", "eof", "50")
_HOPELESS = (
    "not found",
    "denied",
    "unknown",
    "no such host",
    "unauthorized",
    "invalid reference",
    "manifest",
)


@dataclass(frozen=True, slots=True)
class Image:
    """An image that the engine holds."""

    id: str
    digest: str | None
    user: str
    directory: str


class Images:
    """Gets images; each is pulled or built once however many sandboxes ask for it together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._getting: dict[str, asyncio.Task[Image]] = {}
        self._turns = asyncio.Semaphore(_PULLS_AT_ONCE)

    async def get(self, name: str) -> Image:
        """The image ``name``: a reference, or a directory with a Dockerfile.

        Raises ``ImageUnusable`` where it can never be had.
        """
        task = self._getting.get(name)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._getting[name] = asyncio.create_task(self._get(name))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop pulls and builds."""
        for task in self._getting.values():
            task.cancel()
        await asyncio.gather(*self._getting.values(), return_exceptions=True)

    async def _get(self, name: str) -> Image:
        directory = await asyncio.to_thread(_build_directory, name)
        if directory is not None:
            context = await asyncio.to_thread(read_context, directory)
            with context:
                found = await self.find(context.tag)
                if found is None:
                    async with self._turns:
                        await self._build(context, name)
                    found = await self.find(context.tag)
        else:
            found = await self.find(name)
            if found is None:
                async with self._turns:
                    await self._pull(name)
                found = await self.find(name)
        if found is None:
            raise SandboxError(f"the image {name} is not on the engine although it was fetched")
        return found

    async def find(self, name: str) -> Image | None:
        """The image, if the engine holds it."""
        try:
            described = await self._engine.call("GET", f"/images/{quote(name, safe='/:@')}/json")
        except EngineError as error:
            if error.status == 404:
                return None
            raise
        settings = described.get("Config") or {}
        digests = described.get("RepoDigests") or []
        digest = digests[0].partition("@")[2] if digests else described["Id"]
        return Image(described["Id"], digest, settings.get("User") or "", settings.get("WorkingDir") or "/")

    async def _pull(self, name: str) -> None:
        logger.info("pulling the image %s", name)
        query = (
            {"fromImage": name} if ":" in name.rpartition("/")[2] else {"fromImage": name, "tag": "latest"}
        )
        began = time.monotonic()
        for attempt in range(_PULL_TRIES):
            try:
                headers = await authentication_header(name)
                async with self._engine.stream(
                    "POST", "/images/create", query=query, headers=headers, timeout=_PULL_TIMEOUT
                ) as response:
                    await _follow(response.content, f"pulling {name}")
                logger.info("pulled the image %s in %.0f s", name, time.monotonic() - began)
                return
            except EngineError as error:
                if attempt + 1 == _PULL_TRIES or not _may_pass(error):
                    raise _cannot_have(name, error) from error
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**attempt) * random.uniform(0.75, 1.25)
                logger.warning("pulling %s failed, trying again in %.0f s: %s", name, pause, error)
                await asyncio.sleep(pause)

    async def _build(self, context: Context, name: str) -> None:
        logger.info("building the image %s from %s", context.tag, name)
        began = time.monotonic()
        query = {"t": context.tag, "dockerfile": "Dockerfile", "rm": "1", "forcerm": "1", "version": "1"}
        headers = {"Content-Type": "application/x-tar", **await build_header(context.registries)}
        try:
            async with self._engine.stream(
                "POST",
                "/build",
                query=query,
                headers=headers,
                data=context.chunks(),
                timeout=_BUILD_TIMEOUT,
            ) as response:
                await _follow(response.content, f"building {name}")
        except EngineError as error:
            raise ImageBuildFailed(
                f"the image cannot be built from {name}: {error}; try `docker build {name}`"
            ) from error
        logger.info("built the image %s in %.0f s", context.tag, time.monotonic() - began)


async def _follow(content: Any, what: str) -> None:
    """Read progress messages to the end; ``EngineError`` where one of them is an error."""
    noted = time.monotonic()
    last = ""
    async for message in _messages(content):
        if problem := message.get("error") or (message.get("errorDetail") or {}).get("message"):
            raise EngineError(f"{problem} ({last})" if last and last not in problem else str(problem), 500)
        text = str(message.get("stream") or message.get("status") or "").strip()
        if text.startswith("Step ") or time.monotonic() - noted >= _PROGRESS_INTERVAL:
            noted = time.monotonic()
            logger.info("%s: %s %s", what, text, message.get("progress", ""))
        last = text or last


async def _messages(content: Any) -> AsyncIterator[dict[str, Any]]:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)
    if rest.strip():
        yield json.loads(rest)


def _may_pass(error: EngineError) -> bool:
    text = str(error).lower()
    if error.status == 429 or any(part in text for part in _PASSING[:3]):
        return True
    if error.status == 404 or any(part in text for part in _HOPELESS):
        return False
    return error.status is None or error.status >= 500 or any(part in text for part in _PASSING)


def _cannot_have(name: str, error: EngineError) -> SandboxError:
    text = (
        f"the image {name} is not on the engine and cannot be pulled: {error}; check its name, "
        f"`docker login` and the registry's network, or put it there by `docker pull {name}`"
    )
    return SandboxError(text) if _may_pass(error) else ImageUnusable(text)


def _build_directory(name: str) -> Path | None:
    path = Path(name).expanduser()
    if path.is_file() and path.name == "Dockerfile":
        path = path.parent
    if (path / "Dockerfile").is_file():
        return path
    if name.startswith(("/", "./", "../", "~")):
        raise ImageUnusable(
            f"the image {name!r} looks like a directory, but {path / 'Dockerfile'} does not exist"
        )
    return None
