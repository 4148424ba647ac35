"""``web_extract``: the text of pages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from environments.tools.base import JSON, ToolInputError, ToolState
from environments.tools.web.cache import NotRecorded
from environments.tools.web.fetching import FetchError, parse_url
from environments.tools.web.text import NoText, kind_of

if TYPE_CHECKING:
    from environments.tools.web.service import Web

DEFAULT_CHARACTERS = 15_000
"""Characters of each page where the call does not say."""


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
        title, text = await web.reader.read(kind, fetched.body, fetched.charset, fetched.url)
    except FetchError as error:
        return {"error": str(error)}, error.lasting
    except NoText as error:
        return {"error": str(error)}, True
    if not text:
        about = "; it may need JavaScript: open it in the browser" if kind == "html" else ""
        return {"url": fetched.url, "title": title, "error": f"the page has no text{about}"}, True
    if fetched.cut:
        text += f"\n\n[Only the first {len(fetched.body):,} bytes of the page were read.]"
    return {"url": fetched.url, "title": title, "content": text}, True


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
