"""``vision_analyze``, ``browser_vision`` and ``image_generate``."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from environments.errors import SandboxError
from environments.tools.base import JSON, Tool, ToolInputError, ToolSettings, ToolState
from environments.tools.browser.calls import browser_tool
from environments.tools.browser.tabs import Tabs
from environments.tools.browser.tools import requirement as browser_requirement
from environments.tools.paths import describe as describe_error
from environments.tools.vision.endpoint import SIZES, EndpointFailed, describe, draw, missing
from environments.tools.vision.pictures import NoPicture, Picture, load, picture

if TYPE_CHECKING:
    from playwright.async_api import Page

_SLOT = "pictures"
_MOST_LABELS = 200

# Labels over the elements of the last snapshot; each is its ref and its place in the window.
_LABEL = """labels => {
  const layer = document.createElement("div");
  layer.id = "refs-of-the-snapshot";
  layer.style.cssText = "all:initial;position:fixed;inset:0;z-index:2147483647;pointer-events:none";
  for (const [ref, x, y, width, height] of labels) {
    const box = document.createElement("div");
    box.style.cssText = `position:fixed;left:${x}px;top:${y}px;width:${width}px;height:${height}px;` +
      "outline:2px solid #d00";
    const name = document.createElement("span");
    name.textContent = ref;
    name.style.cssText = "position:absolute;left:0;top:0;background:#d00;color:#fff;font:bold 12px monospace";
    box.append(name);
    layer.append(box);
  }
  document.documentElement.append(layer);
}"""
_UNLABEL = """() => document.getElementById("refs-of-the-snapshot")?.remove()"""


async def vision_analyze(state: ToolState, image_url: str, question: str) -> JSON:
    """Ask a model that sees about a picture."""
    _question(question)
    try:
        return {"success": True, "analysis": await _seen(state, await load(state, image_url), question)}
    except (NoPicture, EndpointFailed) as error:
        return {"success": False, "error": str(error), "analysis": f"The picture was not looked at: {error}"}


async def browser_vision(state: ToolState, question: str, annotate: bool = False) -> JSON:
    """Ask a model that sees about what the browser shows."""
    _question(question)
    taken = await _take(state, annotate=annotate)
    data = taken.pop("picture", None)
    if not isinstance(data, bytes):
        return taken
    path = await _keep(state, data, "screenshot", "jpg")
    try:
        analysis = await _seen(state, picture(data), question)
    except (NoPicture, EndpointFailed) as error:
        return {**taken, "success": False, "error": str(error), "screenshot_path": path}
    return {**taken, "analysis": analysis, "screenshot_path": path}


def _no_image(error: str, kind: str) -> JSON:
    return {"success": False, "image": None, "error": error, "error_type": kind}


async def image_generate(state: ToolState, prompt: str, aspect_ratio: str = "landscape") -> JSON:
    """Make a picture from words."""
    if not prompt.strip():
        raise ToolInputError("prompt is empty; say what the picture shall show")
    reason = missing(state.settings.image, "image")
    if reason is not None:
        return _no_image(f"image_generate {reason}", "not_configured")
    try:
        made = await draw(state.settings.image, prompt, SIZES[aspect_ratio])
        if isinstance(made, str):
            return {"success": True, "image": made}
        kind = picture(made).media_type.removeprefix("image/")
    except (NoPicture, EndpointFailed) as error:
        return _no_image(str(error), type(error).__name__)
    return {"success": True, "image": await _keep(state, made, "image", kind)}


def _question(question: str) -> None:
    if not question.strip():
        raise ToolInputError("question is empty; say what you want to know about the picture")


async def _seen(state: ToolState, seen: Picture, question: str) -> str:
    reason = missing(state.settings.vision, "vision")
    if reason is not None:
        raise EndpointFailed(reason)
    return await describe(state.settings.vision, seen, question)


async def _keep(state: ToolState, data: bytes, name: str, ending: str) -> str:
    """Write a picture to the sandbox; its path, or why there is none."""
    number = state.slots[_SLOT] = state.slots.get(_SLOT, 0) + 1
    path = posixpath.join(state.sandbox.scratch, "pictures", f"{name}_{number:04d}.{ending}")
    try:
        await state.sandbox.write_bytes(path, data)
    except SandboxError:
        raise
    except OSError as error:
        return f"not stored: {describe_error(error)}"
    return path


async def _screenshot(tabs: Tabs, annotate: bool) -> JSON:
    page = tabs.free_page()
    if annotate:
        await _label(tabs, page)
    try:
        data = await page.screenshot(type="jpeg", quality=80)
    finally:
        if annotate:
            await page.evaluate(_UNLABEL)
    return {"success": True, "url": page.url, "picture": data}


_take = browser_tool(_screenshot)


async def _label(tabs: Tabs, page: Page) -> None:
    """Write the refs of a new snapshot over the page."""
    from environments.tools.browser.actions import take_snapshot

    found = await take_snapshot(tabs, whole=False)
    labels = []
    for ref in sorted(found.refs)[:_MOST_LABELS]:
        box = await page.get_by_ref(ref).bounding_box()
        if box is not None:
            labels.append([ref, box["x"], box["y"], box["width"], box["height"]])
    await page.evaluate(_LABEL, labels)


def vision_requirement(settings: ToolSettings) -> str | None:
    """What vision_analyze lacks."""
    return missing(settings.vision, "vision")


def browser_vision_requirement(settings: ToolSettings) -> str | None:
    """What browser_vision lacks."""
    return browser_requirement(settings) or missing(settings.vision, "vision")


def image_requirement(settings: ToolSettings) -> str | None:
    """What image_generate lacks."""
    return missing(settings.image, "image")


_QUESTION: JSON = {"type": "string", "description": "What you want to know."}

TOOLS = (
    Tool(
        name="browser_vision",
        description=(
            "Look at what the browser shows and answer a question about it, for what a snapshot does not "
            "tell: layout, pictures, drawings. The screenshot is kept in a file."
        ),
        parameters={
            "type": "object",
            "properties": {
                "question": _QUESTION,
                "annotate": {
                    "type": "boolean",
                    "default": False,
                    "description": "Write the refs of elements over the picture.",
                },
            },
            "required": ["question"],
        },
        function=browser_vision,
        toolset="browser",
        configured_requirement=browser_vision_requirement,
        optional_in=("browser",),
    ),
    Tool(
        name="vision_analyze",
        description="Look at a picture and answer a question about it.",
        parameters={
            "type": "object",
            "properties": {
                "image_url": {"type": "string", "description": "http address, or path of a file."},
                "question": _QUESTION,
            },
            "required": ["image_url", "question"],
        },
        function=vision_analyze,
        toolset="vision",
        parallel_safe=True,
        configured_requirement=vision_requirement,
    ),
    Tool(
        name="image_generate",
        description="Make a picture from a description. Gives the path of its file, or its address.",
        parameters={
            "type": "object",
            "properties": {
                "prompt": {"type": "string", "description": "What the picture shall show."},
                "aspect_ratio": {
                    "type": "string",
                    "enum": list(SIZES),
                    "default": "landscape",
                    "description": "Its shape.",
                },
            },
            "required": ["prompt"],
        },
        function=image_generate,
        toolset="image_gen",
        configured_requirement=image_requirement,
    ),
)
