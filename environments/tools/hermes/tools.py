"""Tools of an installed Hermes Agent, under their own names, as tools of ours.

What we have ourselves is never taken from it: ours work in the rollout's sandbox, its on this machine.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from environments.errors import ConfigError, UnknownName
from environments.sandboxes.local.inside.directories import remove_tree
from environments.sandboxes.local.run_directory import RunDirectory
from environments.tools.attachments import store_encoded
from environments.tools.base import JSON, Tool, ToolFunction, ToolState
from environments.tools.hermes.client import HermesWorker, WorkerFailure
from environments.tools.hermes.settings import HermesSettings, hermes_settings
from environments.tools.registry import all_tools
from environments.tools.shared import SharedResources

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

logger = logging.getLogger(__name__)

_SLOT = "hermes"


@dataclass(frozen=True, slots=True)
class HermesTools:
    """``given`` are the model's; ``others`` can be called by name alone, as reward functions do."""

    given: list[Tool] = field(default_factory=list)
    others: list[Tool] = field(default_factory=list)


class HermesService:
    """The homes of a run's processes with Hermes Agent, in a directory that goes with the run."""

    def __init__(self, settings: HermesSettings) -> None:
        self.settings = settings
        self._directory: RunDirectory | None = None
        self._making = asyncio.Lock()

    async def open(self) -> HermesWorker:
        """A process of its own for a rollout, with an empty home; it starts at its first request."""
        async with self._making:
            if self._directory is None:
                self._directory = await asyncio.to_thread(RunDirectory, "hermes-agent")
        home = await asyncio.to_thread(mkdtemp, prefix=".home-", dir=self._directory.path)
        return HermesWorker(self.settings, Path(home))

    async def release(self, worker: HermesWorker) -> None:
        """End a rollout's process and remove its home."""
        await worker.close()
        await asyncio.to_thread(remove_tree, str(worker.home))

    async def close(self) -> None:
        """Remove what is left on disk."""
        directory, self._directory = self._directory, None
        if directory is not None:
            await asyncio.to_thread(directory.remove)


async def load_hermes_tools(config: HermesAgentEnvConfig, shared: SharedResources) -> HermesTools:
    """What a run's configuration wants of it; see ``load_tools``."""
    settings = hermes_settings(config)
    return await load_tools(settings, shared) if settings is not None else HermesTools()


async def load_tools(settings: HermesSettings, shared: SharedResources) -> HermesTools:
    """The tools that the settings name, and all others of the installed Hermes Agent.

    ``ConfigError`` where it cannot be used, or has no such tool: better at the start of a run than in
    each rollout.
    """
    service = await _service(settings, shared)
    worker = await service.open()
    try:
        listed = await worker.ask({"list": True}, settings.start_timeout)
        names = _chosen(settings.tools, listed)
        defined = await worker.ask({"define": names}, settings.start_timeout)
    except (WorkerFailure, TimeoutError) as error:
        raise ConfigError(_refusal(settings, error)) from error
    finally:
        await service.release(worker)
    _check(settings, listed, defined)
    logger.info("tools of Hermes Agent %s: %s", worker.version, ", ".join(names) or "none for the model")
    given = [_make(settings, entry) for entry in defined["tools"]]
    taken = {*all_tools(), *(tool.name for tool in given)}
    others = [_make(settings, entry) for entry in listed["tools"] if entry["name"] not in taken]
    return HermesTools(given, others)


def _chosen(wanted: Iterable[str], listed: JSON) -> list[str]:
    """The tools that are meant, of toolsets only those that are not ours. ``ConfigError`` where none is."""
    known = {entry["name"] for entry in listed.get("tools", ())}
    toolsets: Mapping[str, list[str]] = listed.get("toolsets", {})
    ours = set(all_tools())
    chosen: dict[str, None] = {}
    for name in wanted:
        if name in known:
            found = [name]
        elif name in toolsets:
            found = toolsets[name]
        else:
            raise UnknownName("tool or toolset of Hermes Agent", name, {*known, *toolsets}, "hermes_tools")
        others = [tool for tool in found if tool not in ours]
        if found and not others:
            raise ConfigError(
                f"hermes_tools: {name!r} is a tool or toolset of this framework, whose tools work in the "
                "rollout's sandbox; name it in enabled_toolsets instead"
            )
        chosen.update(dict.fromkeys(others))
    return list(chosen)


def _check(settings: HermesSettings, listed: JSON, defined: JSON) -> None:
    """Raise ``ConfigError`` for tools that cannot be used, where they were asked for by their own names,
    and for toolsets of which nothing can be."""
    refused: Mapping[str, str] = defined.get("refused", {})
    usable = {entry["name"] for entry in defined.get("tools", ())}
    ours = set(all_tools())
    problems = []
    for name in settings.tools:
        tools = listed["toolsets"].get(name, [])
        if name in refused:
            problems.append(f"tool {name!r}: {refused[name]}")
        elif name not in usable and not usable.intersection(tools):
            reasons = _by_reason({tool: refused[tool] for tool in tools if tool not in ours})
            problems.append(f"toolset {name!r}: {reasons or 'it has no tools'}")
    if problems:
        raise ConfigError(f"hermes_tools asks for what cannot be used: {'; '.join(problems)}")
    left_out = [name for name in refused if name not in settings.tools]
    if left_out:
        reasons = _by_reason({name: refused[name] for name in left_out})
        logger.warning("tools of Hermes Agent left out: %s", reasons)


def _by_reason(refused: Mapping[str, str]) -> str:
    names: dict[str, list[str]] = {}
    for name, reason in refused.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(tools)} ({reason})" for reason, tools in names.items())


def _refusal(settings: HermesSettings, error: Exception) -> str:
    text = f"--env.hermes_python {settings.python}: Hermes Agent {error}"
    if "ModuleNotFoundError" in text:
        text += f"; install it there: {settings.python} -m pip install hermes-agent"
    return text


def _make(settings: HermesSettings, entry: JSON) -> Tool:
    parameters = entry["parameters"] if isinstance(entry["parameters"], dict) else {}
    return Tool(
        name=entry["name"],
        description=entry["description"] or entry["name"],
        parameters={"type": "object", "properties": {}, **parameters},
        function=_function(settings, entry["name"]),
        toolset=entry["toolset"] or "hermes",
    )


def _function(settings: HermesSettings, name: str) -> ToolFunction:
    async def call(state: ToolState, /, **arguments: Any) -> JSON:
        worker = await _worker(settings, state)
        request = {"call": name, "arguments": arguments, "task": f"rollout-{id(state)}"}
        try:
            answer = await worker.ask(request, settings.timeout)
        except WorkerFailure as error:
            return {"error": f"Hermes Agent {error}; it is started again at the next call"}
        return await _result(state, answer)

    return call


async def _service(settings: HermesSettings, shared: SharedResources) -> HermesService:
    async def make() -> HermesService:
        return HermesService(settings)

    return await shared.get("Hermes Agent", make)


async def _worker(settings: HermesSettings, state: ToolState) -> HermesWorker:
    """The rollout's process; it ends with the rollout."""
    lock: asyncio.Lock = state.slots.setdefault(f"{_SLOT} lock", asyncio.Lock())
    async with lock:
        if _SLOT not in state.slots:
            service = await _service(settings, state.shared)
            worker = state.slots[_SLOT] = await service.open()
            state.closers.append(lambda: service.release(worker))
        found: HermesWorker = state.slots[_SLOT]
        return found


async def _result(state: ToolState, answer: JSON) -> JSON:
    if "error" in answer:
        return {"error": str(answer["error"])}
    if "content" in answer:
        parts = [await _part(state, part) for part in answer["content"]]
        return {"result": "\n".join(part for part in parts if part)}
    text = str(answer.get("text", ""))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"result": text}
    return value if isinstance(value, dict) else {"result": value}


async def _part(state: ToolState, part: Any) -> str:
    """One part of a result that is no plain text. Pictures go to a file in the sandbox."""
    if not isinstance(part, dict):
        return str(part)
    if isinstance(part.get("text"), str):
        return str(part["text"])
    address = part.get("image_url")
    address = address.get("url") if isinstance(address, dict) else address
    if isinstance(address, str) and address.startswith("data:"):
        head, _, encoded = address.partition(",")
        return await store_encoded(state, encoded, head[5:].partition(";")[0] or None, _SLOT)
    return str(address) if isinstance(address, str) else f"[{part.get('type', 'data')}]"
