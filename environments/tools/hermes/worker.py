"""A program that runs under the Python of an installed Hermes Agent and gives others its tools.

    python -I worker.py

One JSON object per line goes in and one comes out, over the standard streams that it is started with;
whatever its tools print goes to standard error. The first line out says ``{"ready": VERSION}`` or
``{"failed": REASON}``. Then each request has one answer:

* ``{"list": true}``: every tool with its toolset and schema, and the tools of every toolset
* ``{"define": [NAME, ...]}``: the definitions of those that can be used, and why the others cannot
* ``{"call": NAME, "arguments": {...}, "task": ID}``: ``{"text": ...}`` or ``{"content": [...]}``

It knows of Hermes Agent the registry of ``tools.registry`` and ``model_tools.handle_function_call``, and
imports nothing of ours. The end of its input ends it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Any, BinaryIO

JSON = dict[str, Any]

LONGEST_TEXT = 10_000_000
"""Characters of a result; a longer one is an error."""

_NEEDS_AN_AGENT = {
    "clarify": "it asks the user of Hermes Agent's own program",
    "delegate_task": "it starts agents of Hermes Agent itself",
}


class Agent:
    """The installed Hermes Agent, loaded."""

    def __init__(self) -> None:
        self.calls: Any = importlib.import_module("model_tools")
        self.registry: Any = importlib.import_module("tools.registry").registry
        self.handle = self.calls.handle_function_call
        self.names: list[str] = self.registry.get_all_tool_names()
        self._memory: Any = None

    def list(self) -> JSON:
        """Every tool as it is registered, whether it can be used or not."""
        toolsets: dict[Any, set[str]] = {}
        tools = []
        for name in self.names:
            schema = dict(self.registry.get_schema(name) or {})
            toolset = self.registry.get_toolset_for_tool(name)
            toolsets.setdefault(toolset, set()).add(name)
            tools.append(self._tool(name, toolset, schema))
        for toolset, names in self._named_toolsets():
            toolsets.setdefault(toolset, set()).update(set(names) & set(self.names))
        return {"tools": tools, "toolsets": {name: sorted(found) for name, found in toolsets.items()}}

    def define(self, names: Iterable[str]) -> JSON:
        """The definitions of tools as a model would get them now."""
        wanted = [name for name in names if name not in _NEEDS_AN_AGENT]
        found = {
            d["function"]["name"]: d["function"]
            for d in self.registry.get_definitions(set(wanted), quiet=True)
        }
        tools = [
            self._tool(name, self.registry.get_toolset_for_tool(name), found[name])
            for name in names
            if name in found
        ]
        return {"tools": tools, "refused": {name: self._reason(name) for name in names if name not in found}}

    def call(self, name: str, arguments: JSON, task: str | None) -> JSON:
        """One call. What Hermes Agent's own loop would do itself is done here, as far as it can be."""
        if name in _NEEDS_AN_AGENT:
            return {"text": json.dumps({"error": f"{name} cannot be used here: {_NEEDS_AN_AGENT[name]}"})}
        if name in getattr(self.calls, "_AGENT_LOOP_TOOLS", ()):
            result = self.registry.dispatch(name, arguments, task_id=task, **self._state_of(name))
        else:
            result = self.handle(name, arguments, task_id=task)
        if isinstance(result, dict) and isinstance(result.get("content"), list):
            return _bounded(name, {"content": result["content"]})
        return _bounded(
            name, {"text": result if isinstance(result, str) else json.dumps(result, default=str)}
        )

    def _state_of(self, name: str) -> JSON:
        if name != "memory":
            return {}
        if self._memory is None:
            self._memory = importlib.import_module("tools.memory_tool").MemoryStore()
            self._memory.load_from_disk()
        return {"store": self._memory}

    def _named_toolsets(self) -> Iterable[tuple[str, Iterable[str]]]:
        """Toolsets that are lists of tools, beside those that tools are registered in."""
        try:
            toolsets = importlib.import_module("toolsets")
            return [(name, toolsets.resolve_toolset(name)) for name in toolsets.get_toolset_names()]
        except (ImportError, AttributeError):
            return []

    @staticmethod
    def _tool(name: str, toolset: Any, schema: Mapping[str, Any]) -> JSON:
        return {
            "name": name,
            "toolset": toolset,
            "description": schema.get("description") or "",
            "parameters": schema.get("parameters") or {},
        }

    def _reason(self, name: str) -> str:
        if name in _NEEDS_AN_AGENT:
            return _NEEDS_AN_AGENT[name]
        entry = self.registry.get_entry(name) if hasattr(self.registry, "get_entry") else None
        check = getattr(getattr(entry, "check_fn", None), "__name__", None)
        missing = [
            v
            for v in getattr(entry, "requires_env", None) or ()
            if isinstance(v, str) and v not in os.environ
        ]
        parts = [f"its check {check} fails" if check else "Hermes Agent leaves it out"]
        if missing:
            parts.append(
                f"it names variables that it does not have: {', '.join(missing)} (see hermes_variables)"
            )
        return "; ".join(parts)


def answer(agent: Agent, request: JSON) -> JSON:
    """The answer to one request. Foreign code may raise anything, and exit: none of it ends this program."""
    try:
        if "call" in request:
            return agent.call(request["call"], request.get("arguments") or {}, request.get("task"))
        if "define" in request:
            return agent.define(request["define"])
        return agent.list()
    except BaseException as error:  # noqa: BLE001 - whatever a foreign tool does, it is told
        return {"error": f"{type(error).__name__}: {error}"}


def _bounded(name: str, result: JSON) -> JSON:
    size = len(json.dumps(result, default=str))
    if size <= LONGEST_TEXT:
        return result
    return {
        "text": json.dumps({"error": f"the result of {name} has {size} characters, more than {LONGEST_TEXT}"})
    }


def _version() -> str:
    try:
        return metadata.version("hermes-agent")
    except metadata.PackageNotFoundError:
        return "unknown"


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """The streams we were started with, for us alone: tools and what they start get others in their place."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def main() -> None:
    """Answer until the input ends."""
    requests, answers = _own_streams()

    def say(value: JSON) -> None:
        answers.write(json.dumps(value, default=str).encode("utf-8", "replace") + b"\n")
        answers.flush()

    try:
        agent = Agent()
    except BaseException as error:  # noqa: BLE001 - whatever a foreign import does, it is told
        say({"failed": f"{type(error).__name__}: {error}", "python": sys.version.split()[0]})
        return
    say({"ready": _version()})
    for line in requests:
        say(answer(agent, json.loads(line)))


if __name__ == "__main__":
    main()
