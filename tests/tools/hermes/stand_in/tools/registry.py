"""The part of Hermes Agent's registry that the worker uses, with tools that misbehave in every way."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any


class Registry:
    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}

    def register(
        self,
        name: str,
        toolset: str,
        handler: Any,
        parameters: Any = None,
        check_fn: Any = None,
        needs: Any = (),
    ) -> None:
        schema = {
            "name": name,
            "description": f"Does {name}.",
            "parameters": parameters or {"type": "object"},
        }
        self._entries[name] = SimpleNamespace(
            name=name,
            toolset=toolset,
            schema=schema,
            handler=handler,
            check_fn=check_fn,
            requires_env=list(needs),
        )

    def get_entry(self, name: str) -> Any:
        return self._entries.get(name)

    def get_all_tool_names(self) -> list[str]:
        return sorted(self._entries)

    def get_schema(self, name: str) -> Any:
        return self._entries[name].schema

    def get_toolset_for_tool(self, name: str) -> Any:
        return self._entries[name].toolset

    def get_definitions(self, tool_names: set[str], quiet: bool = False) -> list[dict[str, Any]]:
        entries = [self._entries[name] for name in sorted(tool_names)]
        return [{"type": "function", "function": e.schema} for e in entries if not e.check_fn or e.check_fn()]

    def dispatch(self, name: str, args: dict[str, Any], **kwargs: Any) -> Any:
        if name not in self._entries:
            return json.dumps({"error": f"Unknown tool: {name}"})
        return self._entries[name].handler(args, **kwargs)


registry = Registry()
