"""What the web answered, kept on disk: repeated rollouts see one web and pay for it once.

One JSON file per request, named by the request's hash and written whole or not at all, so that several
processes may share a directory. Keys of providers are no part of a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

JSON = dict[str, Any]


class NotRecorded(Exception):
    """Only recorded answers are to be given, and there is none for this request."""


class WebCache:
    """Answers by request. Without a directory they are kept in memory."""

    def __init__(self, mode: str, directory: Path | None) -> None:
        self._mode = mode
        self._directory = directory
        self._memory: dict[str, JSON] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def answer(self, request: JSON, ask: Callable[[], Awaitable[tuple[JSON, bool]]]) -> JSON:
        """The recorded answer, or what ``ask`` gives: an answer, and whether it is worth keeping.

        Who asks the same at the same time waits for the first one's answer. Raises ``NotRecorded``.
        """
        if self._mode == "off":
            return (await ask())[0]
        name = _name(request)
        lock = self._locks.setdefault(name, asyncio.Lock())
        async with lock:
            found = await self._read(name)
            if found is not None:
                return found
            if self._mode == "replay":
                raise NotRecorded
            answer, lasting = await ask()
            if lasting:
                await self._write(name, request, answer)
            return answer

    async def _read(self, name: str) -> JSON | None:
        if self._directory is None:
            return self._memory.get(name)
        path = self._directory / name
        try:
            entry = json.loads(await asyncio.to_thread(path.read_bytes))
        except (FileNotFoundError, ValueError):  # no such entry, or one that a full disk cut short
            return None
        answer = entry.get("answer") if isinstance(entry, dict) else None
        return answer if isinstance(answer, dict) else None

    async def _write(self, name: str, request: JSON, answer: JSON) -> None:
        if self._directory is None:
            self._memory[name] = answer
            return
        entry = {"request": request, "answer": answer, "recorded_at": time.time()}
        data = json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace")
        await asyncio.to_thread(_write_whole, self._directory / name, data)


def _name(request: JSON) -> str:
    text = json.dumps(request, sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f"{request['kind']}/{digest[:2]}/{digest}.json"


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)  # noqa: PTH105 - Path.replace says the same and hides that it is atomic
    except BaseException:  # no half of a file is left
        part.unlink(missing_ok=True)
        raise
