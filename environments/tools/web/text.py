"""From a page's bytes to text for a model, by worker processes (``text_worker``)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from environments.errors import EngineUnusable

WORKERS = 2
"""Processes of a run, started when needed. A page takes them some 10 to 200 ms."""

_SECONDS = 30
_GRACE = 10
_LONGEST_ANSWER = 8 << 20
_KEPT = ("PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")

_HTML = ("text/html", "application/xhtml+xml")
_TEXT = (
    *("application/json", "application/xml", "application/javascript", "application/x-javascript"),
    *("application/yaml", "application/x-yaml", "application/toml", "application/sql", "application/x-sh"),
    *("application/ecmascript", "application/x-ndjson", "image/svg+xml"),
)
_UNKNOWN = ("", "application/octet-stream", "binary/octet-stream", "text/plain")


class NoText(Exception):
    """There is no text to be had; the message is for the model."""


class TooMuch(NoText):
    """More than the libraries read with the time and memory that they have."""


def kind_of(content_type: str, body: bytes) -> str:
    """``html``, ``pdf`` or ``text``. Raises ``NoText`` for what is none of them."""
    start = body[:1024].lstrip()
    if start.startswith(b"%PDF-"):
        return "pdf"
    if content_type in ("application/pdf", "application/x-pdf"):  # often an error page in its place
        return "html" if start[:256].lower().startswith((b"<!doctype html", b"<html")) else "pdf"
    if content_type in _HTML:
        return "html"
    if content_type in _UNKNOWN:
        lowered = start[:256].lower()
        if content_type != "text/plain" and (b"<!doctype html" in lowered or b"<html" in lowered):
            return "html"
        if b"\0" not in body[:8192] or body.startswith((b"\xff\xfe", b"\xfe\xff")):
            return "text"
        raise NoText(f"binary content ({len(body):,} bytes), which has no text")
    if content_type.startswith("text/") or content_type in _TEXT or content_type.endswith(("+json", "+xml")):
        return "text"
    raise NoText(f"content of type {content_type} ({len(body):,} bytes), which has no text")


class TextReader:
    """The worker processes of one run."""

    def __init__(self) -> None:
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        for _ in range(WORKERS):
            self._idle.put_nowait(_Worker())

    async def read(self, kind: str, body: bytes, charset: str | None, url: str) -> tuple[str, str]:
        """Title and text. Raises ``NoText``; ``EngineUnusable`` where the libraries are not whole."""
        worker = await self._idle.get()
        try:
            header = {"kind": kind, "charset": charset, "url": url, "size": len(body), "seconds": _SECONDS}
            answer = await worker.ask(header, body)
        finally:
            self._idle.put_nowait(worker)
        if answer is None:
            raise TooMuch("the page is too large or too complicated to be read")
        if "broken" in answer:
            raise EngineUnusable(
                f"web_extract cannot read pages: {answer['broken']}; pip install 'hermes-environments[web]'"
            )
        if "error" in answer:
            raise NoText(str(answer["error"]))
        return str(answer["title"]).strip(), str(answer["text"]).strip()

    async def close(self) -> None:
        """End the processes."""
        for _ in range(WORKERS):
            await (await self._idle.get()).end()


class _Worker:
    """One process, started at the first page and again after it was lost."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def ask(self, header: dict[str, Any], body: bytes) -> dict[str, Any] | None:
        """The answer, None where the page was too much for the process."""
        whole = False
        try:
            process = await self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            async with asyncio.timeout(_SECONDS + _GRACE):
                process.stdin.write(json.dumps(header).encode() + b"\n" + body)
                await process.stdin.drain()
                line = await process.stdout.readline()
            answer: dict[str, Any] = json.loads(line)
            whole = True
        except (TimeoutError, OSError, ValueError):  # ended by the kernel, or it stopped answering
            return None
        finally:
            if not whole:  # also when cancelled: its answer would be taken for the next page's
                await self.end()
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                str(Path(__file__).with_name("text_worker.py")),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={name: os.environ[name] for name in _KEPT if name in os.environ},
                limit=_LONGEST_ANSWER,
            )
        return self._process

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
