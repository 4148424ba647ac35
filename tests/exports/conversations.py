"""Conversations, groups of a file and groups on the wire, for the tests of exports."""

from __future__ import annotations

from typing import Any

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "terminal",
            "description": "Run a command.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


def turn(number: int, command: str, result: str) -> list[dict[str, Any]]:
    """One call of the model and what came back; the identifier differs in every conversation."""
    call = {"name": "terminal", "arguments": f'{{"command": "{command}"}}'}
    identifier = f"call_{number}"
    return [
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": f"about {command}",
            "tool_calls": [{"id": identifier, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": identifier, "name": "terminal", "content": result},
    ]


def conversation(task: str, *commands: str, answer: str = "done", first_id: int = 0) -> list[dict[str, Any]]:
    """A task, calls, and an answer."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": task},
    ]
    for number, command in enumerate(commands, first_id):
        messages += turn(number, command, f'{{"output": "result of {command}"}}')
    return [*messages, {"role": "assistant", "content": answer}]


def group(*rollouts: tuple[float, list[dict[str, Any]]], item: str = "i", **metadata: Any) -> dict[str, Any]:
    """A group as a line of a file or a body on the wire has it."""
    rows = range(len(rollouts))
    return {
        "tokens": [[1, 2 + row] for row in rows],
        "masks": [[-100, 2 + row] for row in rows],
        "scores": [score for score, _ in rollouts],
        "messages": [messages for _, messages in rollouts],
        "metadata": [
            {"item_id": item, "attempt": row, "outcome": "scored", "ending": "stopped", **metadata}
            for row in rows
        ],
        "failed": [],
    }
