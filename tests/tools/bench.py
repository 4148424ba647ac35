"""A toolbox over a plain sandbox, called from plain test functions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from environments.tools.base import ToolSettings, ToolState
from environments.tools.registry import all_tools
from environments.tools.toolbox import Toolbox, ToolOutcome

from .plain_sandbox import PlainSandbox


class Bench:
    """A toolbox over a plain sandbox, for tests that are plain functions."""

    def __init__(self, root: Path, path: str | None = None, **settings: Any) -> None:
        self.sandbox = PlainSandbox(root, path)
        self.state = ToolState(self.sandbox, ToolSettings(**settings))
        self.toolbox = Toolbox(list(all_tools().values()), self.state)
        self.work = root / "work"
        self.home = root / "home"

    def outcome(self, name: Any, arguments: Any = None) -> ToolOutcome:
        return asyncio.run(self.toolbox.call(name, arguments))

    def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.outcome(name, arguments).content)
        return result
