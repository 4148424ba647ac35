"""Trying a dialect out when it is loaded: what its template does, and whether turns can be appended.

Everything here is found by rendering small conversations. What cannot be relied on is an error now and
not wrong tokens later.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, Literal

from environments.dialects.base import MustFork, Rendered
from environments.dialects.marks import PLACE
from environments.dialects.messages import Style, set_arguments, set_thinking
from environments.dialects.template import TemplateRefusal
from environments.dialects.template_dialect import TemplateDialect
from environments.errors import BadRequest, ConfigError
from environments.records import Message

_THINKING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "The word."}},
            "required": ["word"],
        },
    },
}
_QUESTION: Message = {"role": "user", "content": "What does probity mean?"}
_CALL: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "call_0001",
            "type": "function",
            "function": {"name": "look_up", "arguments": '{"word": "probity"}'},
        }
    ],
}
_RESULT: Message = {"role": "tool", "tool_call_id": "call_0001", "name": "look_up", "content": "Honesty."}
_ANSWER: Message = {"role": "assistant", "content": "It means honesty."}
_FOLLOW_UP: Message = {"role": "user", "content": "And candour?"}


def verified(dialect: TemplateDialect, name: str) -> TemplateDialect:
    """The dialect with what was found out about its template. Raises ``ConfigError``, saying why."""
    dialect = replace(dialect, style=_style(dialect))
    dialect = replace(dialect, stop_token_ids=_stops(dialect, name))
    try:
        _check_encoding(dialect)
        _check_conversation(dialect)
    except (BadRequest, _Fault) as fault:
        raise ConfigError(f"tokenizer {name!r} cannot give exact tokens: {fault}") from None
    return replace(dialect, tools_problem=_tools_problem(dialect))


def _check_conversation(dialect: TemplateDialect) -> None:
    messages = [_QUESTION, _ANSWER, _FOLLOW_UP]
    try:
        _check_bridge(dialect, messages, tools=None, may_fork=True)
    except TemplateRefusal:  # some templates are for conversations with tools only
        _check_bridge(dialect, messages, tools=[_TOOL], may_fork=True)


def _tools_problem(dialect: TemplateDialect) -> str | None:
    if not dialect.style.calls:
        return "it has no place for calls"
    try:
        _check_bridge(dialect, [_QUESTION, _CALL, _RESULT], tools=[_TOOL], may_fork=False)
    except (BadRequest, _Fault) as fault:
        return str(fault)
    return None


class _Fault(Exception):
    """What is wrong, for the message of the ``ConfigError``."""


def _style(dialect: TemplateDialect) -> Style:
    thinking = dialect.parser.thinking
    style = Style()
    if thinking is not None:
        style = Style(opening=f"{thinking.opening}\n", closing=f"\n{thinking.closing}\n\n")
    for name in _THINKING_FIELDS:
        attempt = replace(style, thinking="field", thinking_field=name)
        reply: dict[str, Any] = {"role": "assistant", "content": "Yes."}
        set_thinking(reply, PLACE, attempt)
        if PLACE in _try_plain(dialect, reply):
            style = attempt
            break
    return _style_of_calls(dialect, style)


def _style_of_calls(dialect: TemplateDialect, style: Style) -> Style:
    """How the template wants a message that has calls only."""
    forms: tuple[Literal["object", "text"], ...] = ("object", "text")
    contents: tuple[str | None, ...] = (None, "")
    found: list[tuple[int, Style]] = []
    for form, content in itertools.product(forms, contents):
        attempt = replace(style, arguments=form, empty_content=content)
        text = _try(dialect, _marked_call(dialect, attempt), tools=True)
        if text is not None and PLACE in text:
            found.append((text.count("None"), attempt))
    if not found:
        return replace(style, calls=False)
    best = min(found, key=lambda entry: entry[0])[1]
    beside = _marked_call(dialect, best)
    beside[1]["content"] = "Let me see."
    text = _try(dialect, beside, tools=True)
    return replace(best, text_beside_calls=text is not None and PLACE in text)


def _marked_call(dialect: TemplateDialect, style: Style) -> list[dict[str, Any]]:
    prepared = replace(dialect, style=style).prepare([_QUESTION, _CALL, _RESULT])
    set_arguments(prepared[1]["tool_calls"][0], {"word": PLACE}, style)
    return prepared


def _try(dialect: TemplateDialect, prepared: list[dict[str, Any]], *, tools: bool) -> str | None:
    """The conversation as text, None where the template refuses it."""
    try:
        return dialect.writer([_TOOL] if tools else None)(prepared, False)
    except TemplateRefusal:
        return None


def _try_plain(dialect: TemplateDialect, reply: dict[str, Any]) -> str:
    """An answer to a question as text, empty where the template refuses it."""
    prepared = [dict(_QUESTION), reply]
    return _try(dialect, prepared, tools=False) or _try(dialect, prepared, tools=True) or ""


def _stops(dialect: TemplateDialect, name: str) -> tuple[int, ...]:
    """The configured stop tokens, the family's, and what the template ends a turn with."""
    stops = list(dialect.stop_token_ids)
    stops += [n for text in dialect.family.stops if (n := dialect.tokenizer.token_to_id(text)) is not None]
    text = _try_plain(dialect, {"role": "assistant", "content": PLACE})
    if PLACE not in text:
        raise ConfigError(f"tokenizer {name!r}: the chat template does not write a plain answer")
    after = text[text.rindex(PLACE) + 1 :]
    for start, _, control in dialect.tokenizer.find_controls(after)[:1]:
        if not after[:start].strip() and control.special:
            stops.append(control.id)
    kept = [stop for stop in stops if stop not in _ids(dialect, dialect.family.no_stops)]
    if not kept:
        raise ConfigError(f"tokenizer {name!r}: no token is known that ends the model's turn")
    return tuple(dict.fromkeys(kept))


def _ids(dialect: TemplateDialect, texts: tuple[str, ...]) -> set[int | None]:
    return {dialect.tokenizer.token_to_id(text) for text in texts}


def _check_encoding(dialect: TemplateDialect) -> None:
    prepared = dialect.prepare([_QUESTION, _ANSWER, _FOLLOW_UP])
    text = _try(dialect, prepared, tools=False) or _try(dialect, prepared, tools=True) or ""
    if dialect.tokenizer.encode(text) != dialect.tokenizer.encode_like_everybody(text):
        raise _Fault("its text cannot be encoded piece by piece without other tokens coming out")


def _check_bridge(
    dialect: TemplateDialect, messages: list[Message], *, tools: list[dict[str, Any]] | None, may_fork: bool
) -> None:
    """After a reply with and without its stop token, the template's rest of the conversation follows."""
    prompt = dialect.render(messages[:1], tools).ids
    whole = dialect.render(messages, tools).ids
    for stop in (None, *dialect.stop_token_ids):
        sequence = [*prompt, *([] if stop is None else [stop])]
        tail = dialect.bridge(sequence, messages, tools, new=len(messages) - 2)
        if isinstance(tail, MustFork):
            if may_fork:
                return
            raise _Fault(tail.reason)
        _check_tail(tail, whole)


def _check_tail(tail: Rendered, whole: list[int]) -> None:
    if not tail.ids:
        raise _Fault("the chat template writes nothing after a reply")
    if whole[-len(tail.ids) :] != tail.ids:
        raise _Fault("what its chat template writes after a reply is not how the conversation goes on")
