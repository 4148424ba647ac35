"""From the actions of tabs to the functions of tools."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from environments.tools.base import JSON, ToolState
from environments.tools.browser.liveness import plain_message
from environments.tools.browser.service import browser_of
from environments.tools.browser.tabs import BrowserProblem, Tabs

_SLOT = "browser"
_LONGEST_CALL = 180.0
"""Seconds beside ``6 * timeout`` after which a browser that does not answer counts as gone."""


async def tabs_of(state: ToolState) -> Tabs:
    """The tabs of this rollout."""
    tabs: Tabs | None = state.slots.get(_SLOT)
    if tabs is None:
        service = await browser_of(state)
        tabs = state.slots.setdefault(_SLOT, Tabs(service, state.settings.browser.timeout))
        if tabs.close not in state.closers:
            state.closers.append(tabs.close)
    await tabs.drop_crashed()
    return tabs


Action = Callable[..., Awaitable[JSON]]


def browser_tool(action: Action) -> Action:
    """A tool function of an action ``(tabs, **arguments)``: one at a time, problems as results."""

    async def call(state: ToolState, **arguments: Any) -> JSON:
        from playwright.async_api import Error
        from playwright.async_api import TimeoutError as PlaywrightTimeout

        tabs = await tabs_of(state)
        async with tabs.busy:
            tabs.begin()
            try:
                async with asyncio.timeout(6 * tabs.timeout + _LONGEST_CALL):
                    result = await action(tabs, **arguments)
            except BrowserProblem as problem:
                result = {"success": False, "error": await tabs.cause(str(problem))}
            except TimeoutError:
                result = {"success": False, "error": await tabs.give_up()}
            except PlaywrightTimeout:
                text = await tabs.unresponsive(f"the page did not react within {tabs.timeout:g} s")
                result = {"success": False, "error": await tabs.cause(text)}
            except Error as error:
                result = {"success": False, "error": await tabs.cause(plain_message(str(error)))}
            if tabs.dialogs:
                result["dialogs"] = [dialog.shown() for dialog in tabs.dialogs]
            if events := tabs.take_events():
                result["events"] = events
            return result

    return call
