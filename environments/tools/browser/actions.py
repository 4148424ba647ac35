"""What a model does with its tabs. Each function is one tool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from environments.tools.base import JSON, ToolInputError
from environments.tools.browser.liveness import plain_message
from environments.tools.browser.snapshot import Snapshot, compact, full, given_ref
from environments.tools.browser.tabs import BrowserProblem, OpenDialog, Tabs
from environments.tools.web.fetching import FetchError, parse_url
from environments.tools.web.guard import Forbidden

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Response

_MOST_IMAGES = 200
_LONGEST_VALUE = 50_000
_GRACE = 2.0
_TRIES = 4
_PAUSE = 0.3
_IN_BETWEEN = ("interrupted by another navigation", "Not attached to an active page")

T = TypeVar("T")

_IMAGES = """most => [...document.images].slice(0, most).map(image => ({
  src: image.currentSrc.slice(0, 2000) || image.src.slice(0, 2000), alt: image.alt.slice(0, 500),
  width: image.naturalWidth, height: image.naturalHeight}))"""

# The innermost thing in the middle of the window that can move, else the page itself.
_SCROLL = """direction => {
  const page = document.scrollingElement || document.documentElement;
  let target = document.elementFromPoint(innerWidth / 2, innerHeight / 2);
  const moves = element => element.scrollHeight > element.clientHeight + 1 &&
    (element === page || /auto|scroll|overlay/.test(getComputedStyle(element).overflowY));
  while (target && !moves(target)) target = target.parentElement;
  target = target || page;
  const before = target.scrollTop;
  target.scrollTop = before + direction * target.clientHeight * 0.8;
  return {moved: Math.round(target.scrollTop - before), above: Math.round(target.scrollTop),
    below: Math.max(0, Math.round(target.scrollHeight - target.clientHeight - target.scrollTop))};
}"""

_DESCRIBE = """function() {
  try {
    const text = JSON.stringify(this);
    return text === undefined ? String(this) : text.slice(0, LIMIT);
  } catch (error) { return String(this).slice(0, LIMIT); }
}""".replace("LIMIT", str(_LONGEST_VALUE))


async def navigate(tabs: Tabs, url: str) -> JSON:
    """Open an address in the tab in front."""
    from playwright.async_api import Error

    address = await checked_address(tabs, url)
    page = await tabs.ready()
    try:
        response = await tabs.act(_goto(page, address))
    except Error as error:
        problem = _navigation_problem(address, str(error), tabs)
        if "Timeout" in str(error):
            tabs.later(page.evaluate("window.stop()"))  # or it would come up in the middle of something else
            problem = await tabs.unresponsive(problem)
        await tabs.settle()
        raise BrowserProblem(problem) from None
    await tabs.settle(loading=True)
    if any(waiting.dialog.type == "beforeunload" for waiting in tabs.dialogs):
        raise BrowserProblem("the page asks whether it may be left; answer with browser_dialog")
    shown = await _look(tabs, whole=False)
    result: JSON = {"success": True, **await _place(tabs), **shown}
    if response is not None:
        result["status"] = response.status
        kind = response.headers.get("content-type", "").partition(";")[0].strip()
        if not shown["element_count"] and kind not in ("", "text/html", "application/xhtml+xml"):
            result["note"] = f"this is {kind} and no page with elements; web_extract may read it"
    return result


async def _goto(page: Page, address: str) -> Response | None:
    return await _insist(lambda: page.goto(address, wait_until="domcontentloaded"))


async def _insist(navigation: Callable[[], Awaitable[T]]) -> T:
    """Navigate, again where the error page of an address before comes in between."""
    from playwright.async_api import Error

    for _ in range(_TRIES - 1):
        try:
            return await navigation()
        except Error as error:
            if not any(sign in str(error) for sign in _IN_BETWEEN):
                raise
            await asyncio.sleep(_PAUSE)
    return await navigation()


async def snapshot(tabs: Tabs, full: bool = False) -> JSON:
    """What the page in front shows."""
    tabs.free_page()
    return {"success": True, **await _place(tabs), **await _look(tabs, whole=full)}


async def click(tabs: Tabs, ref: str) -> JSON:
    """Click an element."""
    element, name = await _element(tabs, ref)
    await tabs.act(element.click())
    await tabs.settle()
    return {"success": True, "clicked": name, **await _place(tabs)}


async def type_text(tabs: Tabs, ref: str, text: str) -> JSON:
    """Replace the content of a field, or choose an option of a list."""
    element, name = await _element(tabs, ref)
    kind = await tabs.ask(element.evaluate("element => element.tagName"))
    if kind == "SELECT":
        labels = "element => [...element.options].map(o => o.label)"
        options = await tabs.ask(element.evaluate(labels))
        if text not in options:
            raise BrowserProblem(f"{name} has no option {text[:100]!r}; its options: {options[:50]}")
        await tabs.act(element.select_option(label=text))
    else:
        await tabs.act(element.fill(text))
    await tabs.settle()
    return {"success": True, "typed": text, "element": name}


async def scroll(tabs: Tabs, direction: str) -> JSON:
    """Scroll most of a window's height."""
    page = tabs.free_page()
    moved: JSON = await tabs.ask(page.evaluate(_SCROLL, 1 if direction == "down" else -1))
    await tabs.settle()
    return {
        "success": True,
        "scrolled": direction,
        "moved_pixels": moved["moved"],
        "pixels_above": moved["above"],
        "pixels_below": moved["below"],
    }


async def back(tabs: Tabs) -> JSON:
    """Go back to the page before."""
    page = tabs.free_page()
    if not await _has_before(tabs, page):
        raise BrowserProblem("there is no page to go back to")
    await tabs.act(_insist(lambda: page.go_back(wait_until="domcontentloaded")))
    await tabs.settle(loading=True)
    return {"success": True, **await _place(tabs)}


async def _has_before(tabs: Tabs, page: Page) -> bool:
    """Whether the tab showed anything before its page but the blank one it began with."""
    session = await tabs.ask(page.context.new_cdp_session(page))
    try:
        history = await tabs.ask(_insist(lambda: session.send("Page.getNavigationHistory")))
    finally:
        tabs.later(session.detach())
    before: int = history["currentIndex"] - 1
    return before >= 0 and history["entries"][before]["url"] != "about:blank"


async def press(tabs: Tabs, key: str) -> JSON:
    """Press a key or a combination."""
    page = tabs.free_page()
    if not key.strip() and key != " ":
        raise ToolInputError("key is empty; name one, such as Enter, Tab, ArrowDown or Control+a")
    await tabs.act(page.keyboard.press(key))
    await tabs.settle()
    return {"success": True, "pressed": key, **await _place(tabs)}


async def get_images(tabs: Tabs) -> JSON:
    """The pictures of the page in front."""
    images: list[JSON] = await tabs.ask(tabs.free_page().evaluate(_IMAGES, _MOST_IMAGES))
    shown = [image for image in images if image["src"]]
    return {"success": True, "images": shown, "count": len(shown)}


async def console(tabs: Tabs, clear: bool = False, expression: str | None = None) -> JSON:
    """What the pages have printed, or the value of an expression."""
    if expression is not None and expression.strip():
        result = await _evaluated(tabs, expression)
        await tabs.settle()
        return result
    tabs.page  # noqa: B018 - says that none is open
    printed, errors = list(tabs.messages.console), list(tabs.messages.errors)
    if clear:
        tabs.messages.clear()
    return {
        "success": True,
        "console_messages": printed,
        "js_errors": errors,
        "total_messages": len(printed),
        "total_errors": len(errors),
    }


async def dialog(
    tabs: Tabs, action: str, dialog_id: str | None = None, prompt_text: str | None = None
) -> JSON:
    """Answer a dialog, the oldest where none is named."""
    tabs.page  # noqa: B018 - says that none is open
    if not tabs.dialogs:
        raise BrowserProblem("no dialog is open")
    answered = _dialog(tabs.dialogs, dialog_id)
    await tabs.answer(answered, accept=action == "accept", text=prompt_text)
    await tabs.settle()
    return {"success": True, "action": action, "dialog": answered.shown(), **await _place(tabs)}


def _dialog(dialogs: list[OpenDialog], wanted: str | None) -> OpenDialog:
    for candidate in dialogs:
        if wanted is None or candidate.id == wanted:
            return candidate
    known = ", ".join(candidate.id for candidate in dialogs)
    raise BrowserProblem(f"there is no dialog {wanted!r}; open: {known}")


async def checked_address(tabs: Tabs, url: str) -> str:
    """An address that the guard lets pass. Raises ``BrowserProblem``."""
    if url.strip() == "about:blank":
        return "about:blank"
    try:
        address = parse_url(url)
        async with asyncio.timeout(tabs.timeout):
            await tabs.guard.addresses(address.host or "", address.port or 80)
    except (FetchError, Forbidden) as error:
        raise BrowserProblem(str(error)) from None
    except TimeoutError:
        raise BrowserProblem(f"the name of {url[:200]} could not be resolved in time") from None
    except OSError as error:
        raise BrowserProblem(f"{url[:200]} cannot be reached: {error.strerror or error}") from None
    fragment = url.partition("#")[2].strip()
    return f"{address}#{fragment}" if fragment else str(address)


def _navigation_problem(address: str, message: str, tabs: Tabs) -> str:
    if "ERR_ABORTED" in message or "Download is starting" in message:
        tabs.take_events()
        return f"{address} is a file and no page; read it with web_extract"
    if "ERR_TUNNEL_CONNECTION_FAILED" in message or "ERR_PROXY" in message:
        return f"{address} cannot be reached (or leads to a private network)"
    if "Timeout" in message:
        return f"{address} did not load within {tabs.timeout:g} s"
    return plain_message(message)


async def _element(tabs: Tabs, ref: str) -> tuple[Locator, str]:
    page = tabs.free_page()
    name = given_ref(ref)
    if name is None:
        raise ToolInputError(f"ref must be one of a snapshot, such as e5, not {ref[:80]!r}")
    element = page.get_by_ref(name)
    if await tabs.ask(element.count()) == 0:
        known = " It was in the last snapshot, but the page has changed." if name in tabs.refs else ""
        raise BrowserProblem(f"there is no element {name} on this page.{known} Take a new browser_snapshot")
    return element, name


async def _look(tabs: Tabs, *, whole: bool) -> JSON:
    if tabs.dialogs:  # the page stands still until they are answered
        return {"snapshot": "", "element_count": 0}
    found = await take_snapshot(tabs, whole=whole)
    return {"snapshot": found.text, "element_count": len(found.refs)}


async def take_snapshot(tabs: Tabs, *, whole: bool) -> Snapshot:
    """The tree of the page in front."""
    tree = await tabs.act(tabs.free_page().aria_snapshot(mode="ai"))
    found = (full if whole else compact)(tree or "")
    tabs.refs = found.refs
    return found


async def _place(tabs: Tabs) -> JSON:
    try:
        page: Page = tabs.page
    except BrowserProblem as problem:  # the action closed the tab, or crashed it
        return {"note": str(problem)}
    if tabs.dialogs:
        return {"url": page.url}
    title = await tabs.act(page.title())
    return {"url": page.url, "title": (title or "")[:500]}


async def _evaluated(tabs: Tabs, expression: str) -> JSON:
    """The value of an expression in the page, by a way that can be bounded."""
    from playwright.async_api import Error

    page = tabs.free_page()
    session = await tabs.ask(page.context.new_cdp_session(page))
    try:
        async with asyncio.timeout(tabs.timeout + _GRACE):
            reply = await tabs.act(_evaluate(session, expression, tabs.timeout), tabs.timeout + 2 * _GRACE)
            if reply is None:
                return {"success": True, "result": None, "result_type": "waiting for a dialog"}
            if "exceptionDetails" in reply:
                return {"success": False, "error": _exception(reply["exceptionDetails"])}
            return {"success": True, **await _value(session, reply["result"])}
    except TimeoutError:
        raise BrowserProblem(f"the expression did not end within {tabs.timeout:g} s") from None
    except Error as error:
        if "Internal error" in str(error):
            raise BrowserProblem(f"the expression was stopped after {tabs.timeout:g} s") from None
        raise
    finally:
        tabs.later(session.detach())  # while a dialog is open it would wait for the answer


async def _evaluate(session: Any, expression: str, timeout: float) -> JSON:
    """As a console does: with ``await`` at the top, and the value of a promise instead of the promise."""
    parameters = {"expression": expression, "replMode": True, "userGesture": True, "timeout": timeout * 1000}
    reply: JSON = await session.send("Runtime.evaluate", {**parameters, "awaitPromise": True})
    if reply["result"].get("subtype") == "promise" and "exceptionDetails" not in reply:
        reply = await session.send("Runtime.awaitPromise", {"promiseObjectId": reply["result"]["objectId"]})
    return reply


async def _value(session: Any, result: JSON) -> JSON:
    kind = result.get("subtype") or result["type"]
    if "objectId" in result:
        reply = await session.send(
            "Runtime.callFunctionOn", {"objectId": result["objectId"], "functionDeclaration": _DESCRIBE}
        )
        text = reply.get("result", {}).get("value")
        return {"result": _decoded(text), "result_type": kind}
    value = result.get("value", result.get("unserializableValue"))
    if isinstance(value, str):
        value = value[:_LONGEST_VALUE]
    return {"result": value, "result_type": kind}


def _decoded(text: Any) -> Any:
    import orjson

    try:
        return orjson.loads(text)
    except (ValueError, TypeError):  # cut, or no JSON in the first place
        return text


def _exception(details: JSON) -> str:
    exception = details.get("exception", {})
    text = exception.get("description") or str(exception.get("value", details.get("text", "")))
    return str(text).partition("\n    at ")[0][:1_000]
