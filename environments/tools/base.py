"""What a tool is: a schema, an async function, and the state of the rollout it works on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from environments.sandboxes.base import Sandbox

JSON = dict[str, Any]


@dataclass(slots=True)
class ToolSettings:
    """Limits that the configuration sets for the tools of one rollout."""

    terminal_timeout: int = 120
    default_result_size_chars: int = 100_000
    turn_budget_chars: int = 200_000
    preview_size_chars: int = 1_500
    tool_result_overrides: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ToolState:
    """Everything the tools of one rollout share; no tool keeps state anywhere else."""

    sandbox: Sandbox
    settings: ToolSettings = field(default_factory=ToolSettings)
    slots: dict[str, Any] = field(default_factory=dict)
    """One entry per tool family (shell, processes, todo list), made at first use."""


ToolFunction = Callable[..., Awaitable[JSON]]
"""``async def tool(state: ToolState, **arguments) -> dict``; the dict is the result as JSON."""


class ToolInputError(Exception):
    """The model called a tool wrongly. The text goes back to the model and says what to do."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: JSON
    function: ToolFunction
    toolset: str
    parallel_safe: bool = False
    """Whether calls of one turn may run side by side with others that are safe."""
    exempt_from_budget: bool = False
    requirement: Callable[[], str | None] | None = None
    """Returns None when the tool can be used here, else what is missing and how to get it."""

    def schema(self) -> JSON:
        """The definition that goes to the model."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }
