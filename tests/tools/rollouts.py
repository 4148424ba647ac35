"""Rollouts that use tools of somebody else: of MCP servers, of a Hermes Agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from environments.tools.base import Tool, ToolState
from environments.tools.shared import SharedResources
from environments.tools.toolbox import Toolbox
from tools.plain_sandbox import PlainSandbox


class ForeignRollouts(ABC):
    """``async with`` loads the tools; at its end all rollouts are over and what they share is closed."""

    def __init__(self, root: Path) -> None:
        self.root, self.shared = root, SharedResources()
        self.boxes: list[Toolbox] = []
        self.tools: Any = None

    @abstractmethod
    async def load(self) -> Any:
        """What becomes of ``tools``."""

    def offered(self) -> Sequence[Tool]:
        """The tools of a rollout."""
        return list(self.tools)

    async def __aenter__(self) -> Self:
        self.tools = await self.load()
        return self

    async def __aexit__(self, *_: object) -> None:
        for box in self.boxes:
            await box.cleanup()
        await self.shared.close()

    def begin(self) -> Toolbox:
        """The tools of another rollout, with a sandbox of its own."""
        state = ToolState(PlainSandbox(self.root / f"rollout{len(self.boxes)}"), shared=self.shared)
        self.boxes.append(Toolbox(self.offered(), state))
        return self.boxes[-1]
