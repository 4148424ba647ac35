"""The browser tools and what they need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from environments.sandboxes.egress.hosts import AllowList
from environments.tools.base import JSON, Tool, ToolSettings
from environments.tools.browser import actions
from environments.tools.browser.calls import Action, browser_tool
from environments.tools.browser.cdp import cdp
from environments.tools.browser.chromium import missing


def requirement(settings: ToolSettings) -> str | None:
    """What the browser tools lack."""
    AllowList(settings.web.allowed_hosts)
    if find_spec("playwright") is None:
        return "needs the extra 'browser': pip install 'hermes-environments[browser]'"
    return missing(settings.browser.path)


def _tool(name: str, action: Action, description: str, /, *required: str, **properties: JSON) -> Tool:
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(
        name=f"browser_{name}",
        description=description,
        parameters=parameters,
        function=browser_tool(action),
        toolset="browser",
        configured_requirement=requirement,
    )


_REF: JSON = {"type": "string", "description": "Ref of the element in the last snapshot, such as e5."}

TOOLS = (
    _tool(
        "navigate",
        actions.navigate,
        "Open a web page in the browser. Gives its compact snapshot. To read text, web_extract is cheaper.",
        "url",
        url={"type": "string", "description": "http or https address."},
    ),
    _tool(
        "snapshot",
        actions.snapshot,
        "What the page shows, as a tree of elements with refs for browser_click and browser_type. Compact: "
        "what can be acted on, with headings; full: all text.",
        full={"type": "boolean", "default": False, "description": "All of the page."},
    ),
    _tool("click", actions.click, "Click an element of the page.", "ref", ref=_REF),
    _tool(
        "type",
        actions.type_text,
        "Type into a field, in place of what is in it; for a list, choose the option of that name.",
        "ref",
        "text",
        ref=_REF,
        text={"type": "string", "description": "What the field shall hold."},
    ),
    _tool(
        "scroll",
        actions.scroll,
        "Scroll the page, or what is scrollable in its middle, by most of a window.",
        "direction",
        direction={"type": "string", "enum": ["up", "down"]},
    ),
    _tool("back", actions.back, "Go back to the page before."),
    _tool(
        "press",
        actions.press,
        "Press a key where the focus is: Enter, Tab, Escape, ArrowDown, a, Control+a.",
        "key",
        key={"type": "string", "description": "Name of the key."},
    ),
    _tool("get_images", actions.get_images, "List the page's pictures with address, text and size."),
    _tool(
        "console",
        actions.console,
        "What the pages printed to the console and their errors; or, with expression, the value of a "
        "JavaScript expression in the page.",
        clear={"type": "boolean", "default": False, "description": "Forget the messages once read."},
        expression={"type": "string", "description": "JavaScript, such as document.title."},
    ),
    _tool(
        "cdp",
        cdp,
        "Send a command of the Chrome DevTools protocol to the page, for what no other tool does.",
        "method",
        method={"type": "string", "description": "Such as Page.captureScreenshot; Target.getTargets."},
        params={
            "type": "object",
            "properties": {},
            "additionalProperties": True,
            "description": "The command's parameters.",
        },
        target_id={"type": "string", "description": "A tab of Target.getTargets; else the one in front."},
        frame_id={"type": "string", "description": "A frame of Page.getFrameTree."},
        timeout={"type": "number", "default": 30, "description": "Seconds, at most 120."},
    ),
    _tool(
        "dialog",
        actions.dialog,
        "Answer a dialog (alert, confirm, prompt) that a page has opened; until then the page stands still.",
        "action",
        action={"type": "string", "enum": ["accept", "dismiss"]},
        dialog_id={"type": "string", "description": "Which one, where several are open."},
        prompt_text={"type": "string", "description": "Answer to a prompt."},
    ),
)
