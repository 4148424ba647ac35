"""Whether a page reacts at all, waking one that a script holds up, and what Playwright says of it."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

_PATIENCE = 2.0
_PREFIX = re.compile(r"\A[A-Z]\w*\.\w+: ")


async def reacts(page: Page) -> bool:
    """Whether a page answers. One that is on its way elsewhere counts as alive."""
    from playwright.async_api import Error

    try:
        async with asyncio.timeout(_PATIENCE):
            await page.evaluate("0")
    except TimeoutError:
        return False
    except Error:  # it is on its way elsewhere, which a page that is stuck cannot be
        return True
    return True


async def stop_scripts(page: Page, line: CDPSession | None) -> bool:
    """End the script that holds a page up; whether it reacts after that.

    ``line`` was made while the page reacted: one that is stuck takes none.
    """
    from playwright.async_api import Error

    if line is not None:
        with suppress(Error, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await line.send("Runtime.terminateExecution")
    return await reacts(page)


def plain_message(text: str) -> str:
    """Playwright's message without the name of its function and its log of calls."""
    text = _PREFIX.sub("", text.partition("Call log:")[0].strip())
    return text[:1_000] or "the browser gave no reason"
