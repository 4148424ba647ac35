"""The tools of one rollout: calls of a model go in, texts for the model come out.

Whatever a model does wrong becomes an outcome that tells it so; whatever a tool does wrong does too.
Only ``SandboxError`` and cancellation leave ``call``: they concern the rollout, not the model.
"""

from __future__ import annotations

import asyncio
import difflib
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from environments.errors import SandboxError
from environments.plain_calls import as_user_code
from environments.tools.arguments import parse_arguments, signature, validate
from environments.tools.background import kill_sessions
from environments.tools.base import JSON, OtherTools, Tool, ToolInputError, ToolState
from environments.tools.budget import over_turn_budget, size_limit, store, to_text
from environments.tools.paths import describe

_SIDE_BY_SIDE = 8
"""Calls of one turn that run at the same time; more would only queue in the sandbox."""

_STORED_SIZE = 600
"""About what a stored result takes beside its preview: path, size and notice."""


@dataclass(slots=True)
class ToolOutcome:
    """What a call came to. ``content`` is JSON text for the model.

    ``error`` is None or a kind: ``unknown_tool``, ``bad_arguments``, ``timeout``, ``tool_error``.
    ``exception`` is the traceback where the tool itself crashed. ``result`` is the whole result
    before budgets. Times are seconds since the epoch.
    """

    content: str
    error: str | None = None
    exception: str | None = None
    result: JSON | None = None
    tool: Tool | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    stored: bool = False
    """Whether the content is only the start of a result that was written to a file."""


class Toolbox:
    """Tools and the state that they share in one rollout."""

    def __init__(self, tools: Sequence[Tool], state: ToolState) -> None:
        self.state = state
        self._tools = {tool.name: tool for tool in tools}

    @property
    def names(self) -> list[str]:
        """Names of the tools, in the order of the prompt."""
        return list(self._tools)

    @property
    def schemas(self) -> list[JSON]:
        """Definitions for the model."""
        return [tool.schema() for tool in self._tools.values()]

    def lacking(self, name: str) -> str | None:
        """What a tool lacks on this machine and how to get it; for calls of tools that nobody selected."""
        tool = self._tools.get(name)
        reason = tool.missing(self.state.settings) if tool is not None else None
        return f"tool {name!r}: {reason}" if reason is not None else None

    async def call(self, name: Any, arguments: Any) -> ToolOutcome:
        """Run one call. A result over its size limit is stored in the sandbox."""
        started_at = time.time()
        outcome = await self._run(name, arguments)
        limit = size_limit(outcome.tool, self.state.settings) if outcome.tool else None
        if limit is not None and len(outcome.content) > limit:
            await self._store(outcome)
        outcome.started_at, outcome.ended_at = started_at, time.time()
        return outcome

    async def call_turn(self, calls: Sequence[tuple[str, str, Any]]) -> list[ToolOutcome]:
        """Run the calls ``(id, name, arguments)`` of one turn; outcomes in the same order.

        Neighbouring calls of tools marked ``parallel_safe`` run side by side; any other call waits
        for those before it and is waited for by those after it, as the model wrote them.
        """
        outcomes: list[ToolOutcome] = []
        for batch in self._batches(calls):
            outcomes += await self._run_batch(batch)
        await self._keep_turn_budget(outcomes)
        return outcomes

    async def cleanup(self) -> None:
        """End what the tools left running; the sandbox itself belongs to the rollout."""
        try:
            await kill_sessions(self.state)
        finally:
            await self.state.close()

    async def _run(self, name: Any, arguments: Any) -> ToolOutcome:
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            return _failure("unknown_tool", self._unknown(name))
        try:
            values = validate(tool, parse_arguments(arguments))
        except ToolInputError as error:
            return _failure("bad_arguments", f"{error}", tool, parameters=signature(tool))
        try:
            if tool.calls_tools:
                values = {**values, "others": self._others()}
            with as_user_code(f"tool {tool.name}"):
                result = await tool.function(self.state, **values)
        except ToolInputError as error:
            return _failure("bad_arguments", str(error), tool)
        except SandboxError:
            raise
        except TimeoutError as error:
            return _failure("timeout", str(error) or f"{name} took too long", tool)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return _failure("tool_error", f"{where}{describe(error)}", tool)
        except Exception as error:  # noqa: BLE001 - tools may be anybody's code; the rollout goes on
            outcome = _failure("tool_error", f"{name} failed: {type(error).__name__}: {error}", tool)
            outcome.exception = traceback.format_exc()
            return outcome
        return ToolOutcome(to_text(result), _error_kind(result), result=result, tool=tool)

    def _others(self) -> OtherTools:
        """What a tool that calls tools may call: all that do not. Its results are whole, without budgets."""

        async def call(name: str, arguments: Any) -> JSON:
            return (await self._run(name, arguments)).result or {}

        plain = [tool for tool in self._tools.values() if not tool.calls_tools]
        return OtherTools({tool.name: _positional(tool) for tool in plain}, call)

    def _unknown(self, name: Any) -> str:
        available = ", ".join(self._tools) or "none"
        if name is None or name == "":
            return f"the call names no tool. Tools: {available}"
        if not isinstance(name, str):
            return f"the tool's name must be a string, not {type(name).__name__}. Tools: {available}"
        wanted = name.strip().casefold().rpartition(".")[2]
        near = difflib.get_close_matches(wanted, list(self._tools), n=2, cutoff=0.5)
        meant = f"; did you mean {' or '.join(near)}?" if near else "."
        return f"there is no tool {name[:80]!r}{meant} Tools: {available}"

    def _batches(self, calls: Sequence[tuple[str, str, Any]]) -> Iterator[list[tuple[str, str, Any]]]:
        batch: list[tuple[str, str, Any]] = []
        for call in calls:
            if self._parallel_safe(call[1]):
                batch.append(call)
                continue
            if batch:
                yield batch
                batch = []
            yield [call]
        if batch:
            yield batch

    def _parallel_safe(self, name: Any) -> bool:
        return isinstance(name, str) and name in self._tools and self._tools[name].parallel_safe

    async def _run_batch(self, batch: list[tuple[str, str, Any]]) -> list[ToolOutcome]:
        if len(batch) == 1:
            return [await self.call(batch[0][1], batch[0][2])]
        gate = asyncio.Semaphore(_SIDE_BY_SIDE)

        async def run(name: str, arguments: Any) -> ToolOutcome:
            async with gate:
                return await self.call(name, arguments)

        tasks = [asyncio.create_task(run(name, arguments)) for _, name, arguments in batch]
        try:
            return await asyncio.gather(*tasks)
        finally:
            # One broke or we were cancelled: none may go on working in a sandbox about to be released.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_turn_budget(self, outcomes: list[ToolOutcome]) -> None:
        settings = self.state.settings
        candidates = [outcome for outcome in outcomes if not outcome.stored]
        fixed = sum(len(outcome.content) for outcome in outcomes if outcome.stored)
        chosen = over_turn_budget(
            [len(outcome.content) for outcome in candidates],
            [outcome.tool is not None and outcome.tool.exempt_from_budget for outcome in candidates],
            settings.turn_budget_chars - fixed,
            settings.preview_size_chars + _STORED_SIZE,
        )
        for index in chosen:
            await self._store(candidates[index])

    async def _store(self, outcome: ToolOutcome) -> None:
        if outcome.result is not None:
            outcome.content = await store(self.state, outcome.result, len(outcome.content))
            outcome.stored = True


def _positional(tool: Tool) -> list[str]:
    """Parameters in the order in which code gives them: those it must give first."""
    names = list(tool.parameters.get("properties", {}))
    required = set(tool.parameters.get("required", ()))
    return sorted(names, key=lambda name: name not in required)


def _failure(kind: str, text: str, tool: Tool | None = None, **extra: Any) -> ToolOutcome:
    result = {"error": text, **extra}
    return ToolOutcome(to_text(result), kind, result=result, tool=tool)


def _error_kind(result: JSON) -> str | None:
    if not result.get("error"):
        return None
    # 124 is the exit code of a command that ran out of time, the one failure with a kind of its own.
    return "timeout" if result.get("exit_code") == 124 or result.get("status") == "timeout" else "tool_error"
