"""``web_extract``: the text of pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from environments.tools.base import JSON, ToolInputError, ToolState
from environments.tools.web.cache import NotRecorded
from environments.tools.web.fetching import FetchError, parse_url
from environments.tools.web.text import NoText, TooMuch, kind_of

if TYPE_CHECKING:
    from environments.tools.web.fetching import Fetched
    from environments.tools.web.service import Web

DEFAULT_CHARACTERS = 15_000
"""Characters of each page where the call does not say."""


_START = 1_000_000
"""Bytes of a page that are read where the whole of it is too much."""


async def web_extract(state: ToolState, urls: list[str], char_limit: int = DEFAULT_CHARACTERS) -> JSON:
    """The text of each page, in the order of ``urls``; a page that cannot be read has its own error."""
    from environments.tools.web.service import web_of

    if not urls:
        raise ToolInputError("urls is empty; give one to five addresses")
    web = await web_of(state)
    tasks = [asyncio.create_task(_page(web, url)) for url in urls]
    try:
        pages = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
    return {"results": [_shown(url, page, char_limit) for url, page in zip(urls, pages, strict=True)]}


async def _page(web: Web, address: str) -> JSON:
    try:
        url = str(parse_url(address))
    except FetchError as error:
        return {"error": str(error)}
    try:
        return await web.cache.answer({"kind": "page", "url": url}, lambda: _read(web, url))
    except NotRecorded:
        return {"error": "this page is not in the recording of the web that is used here; try another one"}


async def _read(web: Web, url: str) -> tuple[JSON, bool]:
    """A page from the web: what is kept of it, and whether it is worth keeping."""
    try:
        fetched = await web.fetcher.fetch(url)
        kind = kind_of(fetched.content_type, fetched.body)
        if kind == "pdf" and fetched.cut:
            raise NoText(f"the PDF is longer than {len(fetched.body):,} bytes, too long to be read")
        title, text, read = await _text(web, kind, fetched)
    except FetchError as error:
        return {"error": str(error)}, error.lasting
    except NoText as error:
        return {"error": str(error)}, True
    if not text:
        about = "; it may need JavaScript: open it in the browser" if kind == "html" else ""
        return {"url": fetched.url, "title": title, "error": f"the page has no text{about}"}, True
    if fetched.cut or read < len(fetched.body):
        text += f"\n\n[Only the first {read:,} bytes of the page were read.]"
    return {"url": fetched.url, "title": title, "content": text}, True


async def _text(web: Web, kind: str, fetched: Fetched) -> tuple[str, str, int]:
    """Title and text of a page, and how many of its bytes were read: its start where all is too much."""
    body = fetched.body
    try:
        return *await web.reader.read(kind, body, fetched.charset, fetched.url), len(body)
    except TooMuch:
        if kind == "pdf" or len(body) <= _START:
            raise
    return *await web.reader.read(kind, body[:_START], fetched.charset, fetched.url), _START


def _shown(asked: str, page: JSON, limit: int) -> JSON:
    content = page.get("content", "")
    if len(content) > limit:
        cut = content[:limit]
        content = f"{cut}\n\n[{limit:,} of {len(content):,} characters; a larger char_limit shows more.]"
    return {
        "url": page.get("url", asked),
        "title": page.get("title", ""),
        "content": content,
        "error": page.get("error"),
    }
