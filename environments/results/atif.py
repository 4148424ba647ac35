"""An attempt as a trajectory in ATIF, the field's format for agents' conversations (version 1.6)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from environments.records import Attempt, Message, Turn, Usage

VERSION = "ATIF-v1.6"

JSON = dict[str, Any]


def trajectory_of(attempt: Attempt, tools: Sequence[JSON] | None = None) -> JSON:
    """The trajectory: one step per message, tool results beside the calls they answer.

    ``tools`` are the schemas that the model saw.
    """
    steps: list[JSON] = []
    turns = iter(attempt.turns)
    for message in attempt.messages:
        role = message.get("role")
        if role == "assistant":
            steps.append(_agent_step(message, next(turns, None), attempt))
        elif role == "tool":
            _observe(steps, message)
        else:
            steps.append({"source": "system" if role == "system" else "user", "message": _text(message)})
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    agent: JSON = {"name": attempt.agent.name, "version": attempt.agent.version or "unknown"}
    if attempt.agent.model:
        agent["model_name"] = attempt.agent.model
    if tools:
        agent["tool_definitions"] = list(tools)
    return {
        "schema_version": VERSION,
        "session_id": f"{attempt.run_id}/{attempt.group_id}/{attempt.attempt}",
        "agent": agent,
        "steps": steps,
        "final_metrics": {
            **_metrics(attempt.usage, "total_{}", "total_cost_usd"),
            "total_steps": len(steps),
        },
        "extra": {"ending": attempt.ending, "outcome": attempt.outcome, "reward": attempt.reward},
    }


def timestamp(seconds: float) -> str | None:
    """A time as ISO 8601, None where it is not known."""
    return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None


def _agent_step(message: Message, turn: Turn | None, attempt: Attempt) -> JSON:
    step: JSON = {"source": "agent", "message": _text(message)}
    if attempt.agent.model:
        step["model_name"] = attempt.agent.model
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        step["reasoning_content"] = reasoning
    calls = [_call(call) for call in message.get("tool_calls") or []]
    if calls:
        step["tool_calls"] = calls
    if turn is not None:
        if when := timestamp(turn.ended_at):
            step["timestamp"] = when
        step["metrics"] = _metrics(turn.usage, "{}", "cost_usd")
        step["extra"] = {"finish_reason": turn.finish_reason}
    return step


def _call(call: JSON) -> JSON:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    try:
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        parsed = {"raw": arguments}  # what the model wrote is no object; it is kept as it is
    return {
        "tool_call_id": str(call.get("id")),
        "function_name": str(function.get("name")),
        "arguments": parsed,
    }


def _observe(steps: list[JSON], message: Message) -> None:
    """Put a tool's result to the step that asked for it."""
    identifier = str(message.get("tool_call_id"))
    for step in reversed(steps):
        if any(call["tool_call_id"] == identifier for call in step.get("tool_calls", [])):
            results = step.setdefault("observation", {"results": []})["results"]
            results.append({"source_call_id": identifier, "content": _text(message)})
            return
    steps.append({"source": "user", "message": _text(message)})  # an answer to nothing that is here


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _metrics(usage: Usage, name: str, cost: str) -> JSON:
    found: JSON = {
        name.format("prompt_tokens"): usage.prompt_tokens,
        name.format("completion_tokens"): usage.completion_tokens,
        name.format("cached_tokens"): usage.cached_tokens,
    }
    if usage.cost is not None:
        found[cost] = usage.cost
    return found
