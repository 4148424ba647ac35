"""``browser_cdp``: commands of the Chrome DevTools protocol, on the rollout's own pages alone.

The browser is shared and runs on the framework's machine, so only commands that stay within a page
are passed on: none that names another context, reads files, or loads what the guard would not let pass.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from environments.tools.base import JSON
from environments.tools.browser.actions import checked_address
from environments.tools.browser.tabs import BrowserProblem, Tabs

if TYPE_CHECKING:
    from playwright.async_api import Frame, Page

LONGEST_TIMEOUT = 120.0

_DOMAINS = (
    *("Accessibility", "Animation", "CSS", "DOM", "DOMDebugger", "DOMSnapshot", "DOMStorage", "Emulation"),
    *("Input", "LayerTree", "Log", "Media", "Network", "Overlay", "Page", "Performance", "Runtime"),
)
_REFUSED = {
    "DOM.setFileInputFiles": "it gives pages files of the framework's machine",
    "DOM.getFileInfo": "it tells of files of the framework's machine",
    "Network.loadNetworkResource": "it loads what no page may",
    "Network.setRequestInterception": "nobody would let the requests go on",
    "Network.takeResponseBodyForInterceptionAsStream": "nobody would let the requests go on",
    "Page.handleJavaScriptDialog": "use browser_dialog",
    "Page.setDownloadBehavior": "downloads are not taken",
    "Page.setInterceptFileChooserDialog": "file choosers are not answered",
    "Page.close": "the tab belongs to the rollout",
    "Page.crash": "it ends the page",
    "Page.startScreencast": "nobody would take the pictures; use Page.captureScreenshot",
    "Runtime.runIfWaitingForDebugger": "no page waits",
    "Runtime.disable": "the console would fall silent",
    "Page.disable": "the browser tools need it",
    "Network.disable": "the browser tools need it",
}
_REFUSED_PARAMETERS = {"grantUniveralAccess", "grantUniversalAccess", "browserContextId"}


async def cdp(
    tabs: Tabs,
    method: str,
    params: JSON | None = None,
    target_id: str | None = None,
    frame_id: str | None = None,
    timeout: float = 30,
) -> JSON:
    """Send one command and give its answer."""
    arguments = dict(params or {})
    tabs.page  # noqa: B018 - says that none is open
    if method == "Target.getTargets":
        return {"success": True, "method": method, "result": {"targetInfos": await _targets(tabs)}}
    await _check(tabs, method, arguments)
    if not 0 < timeout <= LONGEST_TIMEOUT:
        raise BrowserProblem(f"timeout must be more than 0 and at most {LONGEST_TIMEOUT:g} seconds")
    session = await _session(tabs, target_id, frame_id)
    try:
        async with asyncio.timeout(timeout):
            result = await tabs.act(session.send(method, arguments), timeout + 1)
    except TimeoutError:
        problem = f"{method} gave no answer within {timeout:g} s"
        raise BrowserProblem(await tabs.unresponsive(problem)) from None
    finally:
        tabs.later(session.detach())
    await tabs.settle()
    return {"success": True, "method": method, "result": result}


async def _check(tabs: Tabs, method: str, params: JSON) -> None:
    domain, _, name = method.partition(".")
    if not name or not method.replace(".", "").isalnum():
        raise BrowserProblem(f"method must be like Page.captureScreenshot, not {method[:80]!r}")
    if domain not in _DOMAINS:
        allowed = ", ".join(_DOMAINS)
        raise BrowserProblem(
            f"{method} is not available: the browser is shared, so only Target.getTargets and commands of "
            f"{allowed} are"
        )
    if method in _REFUSED:
        raise BrowserProblem(f"{method} is not available: {_REFUSED[method]}")
    refused = _REFUSED_PARAMETERS & params.keys()
    if refused:
        raise BrowserProblem(f"{method} is not available with {', '.join(sorted(refused))}")
    if method == "Page.navigate":
        params["url"] = await checked_address(tabs, str(params.get("url", "")))
    if len(json.dumps(params, default=str)) > 1_000_000:
        raise BrowserProblem("params are longer than a million characters")


async def _targets(tabs: Tabs) -> list[JSON]:
    """The rollout's own pages, as the protocol tells of targets."""
    infos = []
    for page in tabs.pages:
        session = await tabs.ask(page.context.new_cdp_session(page))
        try:
            info = (await tabs.ask(session.send("Target.getTargetInfo")))["targetInfo"]
        finally:
            tabs.later(session.detach())
        infos.append({key: info[key] for key in ("targetId", "type", "title", "url") if key in info})
    return infos


async def _session(tabs: Tabs, target_id: str | None, frame_id: str | None) -> Any:
    """A line to a page, or to one of its frames that has a process of its own."""
    from playwright.async_api import Error

    page = tabs.page if target_id else tabs.free_page()
    if target_id:
        for candidate, info in zip(tabs.pages, await _targets(tabs), strict=True):
            if info["targetId"] == target_id:
                page = candidate
                break
        else:
            raise BrowserProblem(f"there is no target {target_id[:80]!r}; Target.getTargets lists them")
    if not frame_id:
        return await tabs.ask(page.context.new_cdp_session(page))
    places: list[Page | Frame] = [page, *page.frames]
    for place in places:
        try:
            session = await tabs.ask(page.context.new_cdp_session(place))
        except Error:  # a frame that shares its parent's process, and so its parent's line
            continue
        if frame_id in _frame_ids((await tabs.ask(session.send("Page.getFrameTree")))["frameTree"]):
            return session
        tabs.later(session.detach())
    raise BrowserProblem(f"there is no frame {frame_id[:80]!r}; Page.getFrameTree lists them")


def _frame_ids(tree: JSON) -> set[str]:
    ids = {tree["frame"]["id"]}
    return ids.union(*(_frame_ids(child) for child in tree.get("childFrames", [])))
