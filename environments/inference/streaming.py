"""Putting a streamed chat completion together again.

``EventReader`` cuts bytes into server-sent events, ``ReplyAssembler`` adds their deltas up to the JSON
that the server would have sent without streaming. Both know nothing of the network.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class EventReader:
    """Cuts a byte stream into the data of its events. Feed it chunks as they come."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that this chunk completes."""
        if b"\n" not in chunk:
            self._pieces.append(chunk)
            return []
        lines = (b"".join(self._pieces) + chunk).split(b"\n")
        self._pieces = [lines.pop()]
        return [event for line in lines if (event := self._line(line.rstrip(b"\r"))) is not None]

    def finish(self) -> list[bytes]:
        """An event that the end of the stream completes."""
        last = b"".join(self._pieces)
        self._pieces = []
        return [event for line in (last.rstrip(b"\r"), b"") if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            event = b"\n".join(self._data)
            self._data = []
            return event
        return None  # comments (keep-alives) and other fields


@dataclass(slots=True)
class _PartialCall:
    fields: dict[str, Any] = field(default_factory=dict)
    function: dict[str, Any] = field(default_factory=dict)
    name: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def build(self) -> dict[str, Any]:
        function = {**self.function, "name": "".join(self.name)}
        if self.arguments or "arguments" not in function:
            function["arguments"] = "".join(self.arguments)
        return {"type": "function", **self.fields, "function": function}


@dataclass(slots=True)
class _PartialChoice:
    texts: dict[str, list[str]] = field(default_factory=dict)
    blocks: list[Any] = field(default_factory=list)
    details: list[Any] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)
    calls: dict[Any, _PartialCall] = field(default_factory=dict)
    key_of_index: dict[int, Any] = field(default_factory=dict)
    last_call: Any = None
    finish_reason: str | None = None


_TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")
_IGNORED = frozenset({"role", "tool_calls", "reasoning_details", *_TEXT_FIELDS})


class ReplyAssembler:
    """Adds up the chunks of one streamed chat completion."""

    def __init__(self) -> None:
        self._choices: dict[int, _PartialChoice] = {}
        self._header: dict[str, Any] = {}
        self._usage: Any = None

    @property
    def started(self) -> bool:
        """Whether the model has produced anything yet."""
        return any(c.texts or c.blocks or c.details or c.calls for c in self._choices.values())

    @property
    def finished(self) -> bool:
        """Whether every choice has said why it ended."""
        return bool(self._choices) and all(c.finish_reason for c in self._choices.values())

    def add(self, chunk: dict[str, Any]) -> None:
        """Take in one chunk."""
        for key in ("id", "model", "created"):
            if chunk.get(key) and key not in self._header:
                self._header[key] = chunk[key]
        if isinstance(chunk.get("usage"), dict):
            self._usage = chunk["usage"]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                self._add_choice(choice)

    def build(self) -> dict[str, Any]:
        """The reply as one JSON object."""
        choices = [
            {
                "index": index,
                "finish_reason": choice.finish_reason,
                "message": _build_message(choice),
            }
            for index, choice in sorted(self._choices.items())
        ]
        return {**self._header, "choices": choices, "usage": self._usage}

    def _add_choice(self, choice: dict[str, Any]) -> None:
        index = choice.get("index")
        partial = self._choices.setdefault(index if isinstance(index, int) else 0, _PartialChoice())
        if choice.get("finish_reason"):
            partial.finish_reason = str(choice["finish_reason"])
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            return
        for key in _TEXT_FIELDS:
            value = delta.get(key)
            if isinstance(value, str) and value:
                partial.texts.setdefault(key, []).append(value)
        if isinstance(delta.get("content"), list):
            _add_blocks(partial.blocks, delta["content"])
        if isinstance(delta.get("reasoning_details"), list):
            _add_details(partial.details, delta["reasoning_details"])
        partial.extra.update({k: v for k, v in delta.items() if k not in _IGNORED and v is not None})
        calls = delta.get("tool_calls")
        for fragment in calls if isinstance(calls, list) else []:
            if isinstance(fragment, dict):
                _add_call(partial, fragment)


def _build_message(choice: _PartialChoice) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None, **choice.extra}
    message.update({key: "".join(parts) for key, parts in choice.texts.items()})
    if choice.blocks:
        text = message["content"]
        message["content"] = [*choice.blocks, *([{"type": "text", "text": text}] if text else [])]
    if choice.details:
        message["reasoning_details"] = choice.details
    if choice.calls:
        message["tool_calls"] = [call.build() for call in choice.calls.values()]
    return message


def _add_call(choice: _PartialChoice, fragment: dict[str, Any]) -> None:
    """Add a fragment to its call: by index, else by a new id, else to the last one."""
    key = _call_key(choice, fragment)
    choice.last_call = key
    call = choice.calls.setdefault(key, _PartialCall())
    function = fragment.get("function")
    for name, value in (function if isinstance(function, dict) else {}).items():
        if name == "name":
            if isinstance(value, str) and not (call.name and value == "".join(call.name)):
                call.name.append(value)
        elif name == "arguments" and isinstance(value, str):
            call.arguments.append(value)
        elif value is not None:
            call.function[name] = value
    for name, value in fragment.items():
        if name not in ("function", "index") and value not in (None, ""):
            call.fields.setdefault(name, value)


def _call_key(choice: _PartialChoice, fragment: dict[str, Any]) -> Any:
    """The key of the call that a fragment belongs to; a new one where it begins a call."""
    index, identifier = fragment.get("index"), fragment.get("id")
    function = fragment.get("function")
    named = isinstance(function, dict) and bool(function.get("name"))
    if isinstance(index, int):
        key = choice.key_of_index.setdefault(index, index)
        known = choice.calls.get(key)
        # Some servers number every call 0: another id together with a name is another call.
        if known and named and identifier and known.fields.get("id") not in (None, identifier):
            key = choice.key_of_index[index] = (index, identifier)
        return key
    same = [key for key, call in choice.calls.items() if identifier and call.fields.get("id") == identifier]
    if same:
        return same[0]
    if named or choice.last_call is None:
        return ("call", len(choice.calls))
    return choice.last_call


def _add_blocks(blocks: list[Any], pieces: list[Any]) -> None:
    """Add content blocks; text and thinking that follow their own kind are joined."""
    for piece in pieces:
        last = blocks[-1] if blocks else None
        kind = piece.get("type") if isinstance(piece, dict) else None
        if kind and isinstance(last, dict) and last.get("type") == kind and kind in ("text", "thinking"):
            if isinstance(last.get(kind), str) and isinstance(piece.get(kind), str):
                last[kind] += piece[kind]
                continue
            if isinstance(last.get(kind), list) and isinstance(piece.get(kind), list):
                last[kind] = last[kind] + piece[kind]
                continue
        blocks.append(dict(piece) if isinstance(piece, dict) else piece)


def _add_details(details: list[Any], pieces: list[Any]) -> None:
    """Add OpenRouter's reasoning details; fragments of one entry share index and type."""
    for piece in pieces:
        last = details[-1] if details else None
        if (
            isinstance(piece, dict)
            and isinstance(last, dict)
            and piece.get("index") is not None
            and all(piece.get(key) == last.get(key) for key in ("index", "type"))
        ):
            for key, value in piece.items():
                if key in ("text", "summary", "data") and isinstance(value, str):
                    last[key] = (last.get(key) or "") + value
                elif value is not None:
                    last[key] = value
        else:
            details.append(dict(piece) if isinstance(piece, dict) else piece)
