"""Fit a long conversation into a number of tokens by taking turns out of its middle.

Kept are the beginning (system messages, the task, the first turn) and the end; between them the oldest
turns go first, just as many as needed, and one user message says what they did. A turn is the model's
message with the results of its calls; it is never split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from environments.exports.messages import calls_of, text_of

JSON = dict[str, Any]

LAST_TURNS = 2
"""Turns at the end that are always kept."""

LINES = (30, 8, 0)
"""Most calls that the note lists; fewer where they would be too long themselves."""

_WIDTH = 160


def compress(
    messages: Sequence[JSON], max_tokens: int, count: Callable[[Sequence[JSON]], int]
) -> tuple[list[JSON], int] | None:
    """The conversation within ``max_tokens``, and how many turns a note stands for; None where even the
    beginning and the end are too long together.
    """
    if count(messages) <= max_tokens:
        return list(messages), 0
    turns = _turns(messages)
    first = next((i for i, turn in enumerate(turns) if turn[0].get("role") == "assistant"), len(turns)) + 1
    head, middle, tail = turns[:first], turns[first:-LAST_TURNS], turns[max(first, len(turns) - LAST_TURNS) :]

    def shortened(removed: int, lines: int) -> list[JSON]:
        return [*_flat(head), _note(middle[:removed], lines), *_flat(middle[removed:]), *_flat(tail)]

    def fits(removed: int, lines: int) -> bool:
        return count(shortened(removed, lines)) <= max_tokens

    low, high = 1, len(middle)  # the fewest turns to remove, found by halving
    lines = next((lines for lines in LINES if middle and fits(high, lines)), None)
    if lines is None:
        return None
    while low < high:
        half = (low + high) // 2
        low, high = (low, half) if fits(half, lines) else (half + 1, high)
    return shortened(high, lines), high


def _turns(messages: Sequence[JSON]) -> list[list[JSON]]:
    """The messages in pieces that belong together: a message, and the tool results after it."""
    turns: list[list[JSON]] = []
    for message in messages:
        if message.get("role") == "tool" and turns:
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns


def _flat(turns: Sequence[Sequence[JSON]]) -> list[JSON]:
    return [message for turn in turns for message in turn]


def _note(turns: Sequence[Sequence[JSON]], most: int) -> JSON:
    lines = [line for turn in turns for line in _lines(turn)]
    if len(lines) > most:
        lines = [
            *lines[:most],
            f"- {'and ' if most else ''}{len(lines) - most} {'more' if most else 'steps'}",
        ]
    said = f"[{len(turns)} earlier turns are left out here. In them you did:]"
    return {"role": "user", "content": "\n".join([said, *lines])}


def _lines(turn: Sequence[JSON]) -> list[str]:
    message, results = turn[0], [text_of(result.get("content")) for result in turn[1:]]
    calls = calls_of(message)
    if not calls:
        return [f"- {message.get('role', 'assistant')}: {_short(text_of(message.get('content')))}"]
    lines = []
    for number, (_, name, arguments) in enumerate(calls):
        result = f" -> {_short(results[number])}" if number < len(results) else ""
        lines.append(f"- {name} {_short(orjson.dumps(arguments).decode())}{result}")
    return lines


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 3]}..."
