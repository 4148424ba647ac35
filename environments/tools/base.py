"""What a tool is: a schema, an async function, and the state of the rollout it works on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from environments.sandboxes.base import Sandbox
from environments.tools.browser.settings import BrowserSettings
from environments.tools.shared import SharedResources
from environments.tools.vision.settings import EndpointSettings
from environments.tools.web.settings import WebSettings

JSON = dict[str, Any]


@dataclass(slots=True)
class ToolSettings:
    """Limits that the configuration sets for the tools of one rollout."""

    terminal_timeout: int = 120
    default_result_size_chars: int = 100_000
    turn_budget_chars: int = 200_000
    preview_size_chars: int = 1_500
    tool_result_overrides: dict[str, int] = field(default_factory=dict)
    web: WebSettings = field(default_factory=WebSettings)
    browser: BrowserSettings = field(default_factory=BrowserSettings)
    vision: EndpointSettings = field(default_factory=EndpointSettings)
    image: EndpointSettings = field(default_factory=EndpointSettings)


@dataclass(slots=True)
class ToolState:
    """Everything the tools of one rollout share; no tool keeps state anywhere else."""

    sandbox: Sandbox
    settings: ToolSettings = field(default_factory=ToolSettings)
    slots: dict[str, Any] = field(default_factory=dict)
    """One entry per tool family (shell, processes, todo list), made at first use."""
    shared: SharedResources = field(default_factory=SharedResources)
    """What the rollouts of the run have together."""
    closers: list[Callable[[], Awaitable[None]]] = field(default_factory=list)
    """Called at the end of the rollout, the last one first, by tools that hold more than memory."""

    async def close(self) -> None:
        """Give back what the tools hold outside the sandbox. Idempotent."""
        async with AsyncExitStack() as stack:
            for closer in self.closers:
                stack.push_async_callback(closer)
            self.closers.clear()


ToolFunction = Callable[..., Awaitable[JSON]]
"""``async def tool(state: ToolState, **arguments) -> dict``; the dict is the result as JSON."""


class ToolInputError(Exception):
    """The model called a tool wrongly. The text goes back to the model and says what to do."""


@dataclass(frozen=True, slots=True)
class OtherTools:
    """What a tool may call: the parameters of each by its name, and the way to call it."""

    parameters: dict[str, list[str]]
    call: Callable[[str, Any], Awaitable[JSON]]


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
    calls_tools: bool = False
    """Whether its function gets ``others``, by which it may call the other tools of the rollout."""
    requirement: Callable[[], str | None] | None = None
    """Returns None when the tool can be used here, else what is missing and how to get it."""
    configured_requirement: Callable[[ToolSettings], str | None] | None = None
    """The same, for a tool whose needs depend on the configuration."""
    optional_in: tuple[str, ...] = ()
    """Toolsets that are whole without it: to name one of them does not ask for this tool."""

    def missing(self, settings: ToolSettings) -> str | None:
        """What the tool lacks here and how to get it; None when it can be used."""
        reason = self.requirement() if self.requirement is not None else None
        if reason is None and self.configured_requirement is not None:
            reason = self.configured_requirement(settings)
        return reason

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
