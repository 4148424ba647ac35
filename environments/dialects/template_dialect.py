"""The dialect that a chat template defines, for any model family.

A turn is appended by rendering the whole conversation with a mark in the place of the last reply, and
taking what the template wrote after it. The reply itself is never rendered for this: its tokens are
those that were sampled. Where the template writes something else in the place of earlier messages than
it did before, such as leaving out thinking, the conversation must fork.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from environments.dialects.base import MustFork, Rendered
from environments.dialects.families import Family
from environments.dialects.marks import PLACE
from environments.dialects.messages import Style, has_thinking, set_arguments, set_thinking, to_template
from environments.dialects.template import ChatTemplate, TemplateRefusal
from environments.dialects.tokenizer import ChatTokenizer, ControlToken
from environments.errors import BadRequest, ConfigError
from environments.records import Message
from environments.tool_call_parsers.base import ParseResult, ToolCallParser

_THOUGHT = "\udc03"
"""Stands for the thinking of the last reply."""

Tools = Sequence[Mapping[str, Any]] | None
KeepThinking = Literal["template", "always"]


@dataclass(frozen=True)
class TemplateDialect:
    """A tokenizer, its chat template, and what is known of the family.

    ``thinking`` says whether earlier thinking is dropped where the template drops it (``template``,
    with a fork), or stays in the sequence whatever the template says (``always``).
    """

    tokenizer: ChatTokenizer
    template: ChatTemplate
    parser: ToolCallParser
    stop_token_ids: tuple[int, ...]
    family: Family = field(default_factory=Family)
    style: Style = field(default_factory=Style)
    options: Mapping[str, Any] = field(default_factory=dict)
    thinking: KeepThinking = "template"
    tools_problem: str | None = None
    """Why conversations with tool calls cannot be written, None where they can."""

    @property
    def parser_name(self) -> str:
        """Name of the parser that reads replies."""
        return self.parser.name

    def with_options(self, options: Mapping[str, Any]) -> TemplateDialect:
        """The same dialect with further ``chat_template_kwargs``."""
        return replace(self, options={**self.options, **options}) if options else self

    def render(self, messages: Sequence[Message], tools: Tools, *, generation: bool = True) -> Rendered:
        """A whole conversation. Raises ``BadRequest`` where the template refuses it, and ``ConfigError``
        for tools where it has no place for them."""
        if tools and self.tools_problem:
            raise ConfigError(f"the chat template cannot be used with tools: {self.tools_problem}")
        writer = self._writer(tools)
        prepared = self._prepare(messages)
        text = writer(prepared, generation)
        prompt = text[_common(text, writer(prepared, False)) :] if generation else ""
        return Rendered(self.tokenizer.encode(text), prompt)

    def bridge(
        self, sequence: Sequence[int], messages: Sequence[Message], tools: Tools, *, new: int
    ) -> Rendered | MustFork:
        """What to append to ``sequence``, or why it cannot go on. See ``Dialect``."""
        writer = self._writer(tools)
        try:
            prepared = self._prepare(messages)
        except BadRequest as refusal:
            return MustFork(str(refusal))
        index = len(prepared) - new - 1
        asks = self.thinking == "template" and has_thinking(messages[index])
        _mark(prepared[index], asks, self.style)
        view: _View | None
        try:
            view = _View(writer, prepared, index)
        except TemplateRefusal as refusal:
            # Some templates refuse what models do, such as two calls at once.
            view = _smaller_view(writer, prepared, index)
            if view is None:
                return MustFork(str(refusal))
        else:
            if self.thinking == "template" and view.after is not None and (reason := view.rewritten()):
                return MustFork(reason)
        if view.after is None:
            return MustFork("the chat template leaves out the calls or the text of the last reply")
        tail = self._after_reply(view, sequence)
        return Rendered(self.tokenizer.encode(tail, follows=True), view.generation_prompt())

    def parse(
        self, ids: Sequence[int], *, tools: Tools, generation_prompt: str = "", finish_reason: str = "stop"
    ) -> ParseResult:
        """The message that the sampled ``ids`` are. Never raises."""
        ids = list(ids)
        if ids and ids[-1] in self.stop_token_ids and not self._parser_needs(ids[-1]):
            ids.pop()
        return self.parser.parse_tokens(
            ids,
            self.tokenizer,
            tools=tools,
            generation_prompt=generation_prompt,
            finished=finish_reason == "stop",
        )

    def _parser_needs(self, stop: int) -> bool:
        control = self.tokenizer.control(stop)
        return control is not None and control.text in (*self.parser.stop_texts, *self.parser.markers)

    def _writer(self, tools: Tools) -> _Writer:
        marked = self.tokenizer.guard.everywhere(list(tools), ends=False) if tools else None
        return _Writer(self.template, marked, self.options, datetime.now())

    def _prepare(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        prepared = to_template(messages, self.tokenizer.guard, self.style)
        return self.family.prepare(prepared)

    def _after_reply(self, view: _View, sequence: Sequence[int]) -> str:
        """The text to append: what follows the reply in the rendered conversation, from the end of
        the model's turn on, without a stop token that the model has already sampled."""
        after = view.after or ""
        border = self._border(after, view.after_alone)
        if isinstance(border, int):
            return after[border:]
        last = sequence[-1] if sequence else None
        if last == border.token.id or (border.ends_turn and last in self.stop_token_ids):
            return after[border.end :]
        return after[border.start :]

    def _border(self, after: str, alone: str) -> _Border | int:
        """The token at which the model's turn ends, or the place where there is none.

        ``alone`` is what the template writes after the same reply where nothing follows it.
        """
        stop = self._first_stop(alone)
        if stop is not None and after.startswith(alone[: stop.start]):
            # A template may end its last turn with another token than the turns before.
            found = [c for c in self.tokenizer.find_controls(after) if c[0] == stop.start]
            if found:
                start, end, token = found[0]
                return _Border(start, end, token, token.text not in self.family.opens_next)
        shared = _common(after, alone)
        following = self._first_stop(after)
        if following is not None and not after[shared : following.start].strip():
            return replace(following, ends_turn=False)
        return shared

    def _first_stop(self, text: str) -> _Border | None:
        for start, end, token in self.tokenizer.find_controls(text):
            if token.id in self.stop_token_ids:
                return _Border(start, end, token)
        return None


@dataclass(frozen=True, slots=True)
class _Border:
    """A control token in a text. ``ends_turn`` tells the end of a turn from the beginning of the next."""

    start: int
    end: int
    token: ControlToken
    ends_turn: bool = True


@dataclass(frozen=True, slots=True)
class _Writer:
    """Renders with everything but the messages fixed, the time included."""

    template: ChatTemplate
    tools: Tools
    options: Mapping[str, Any]
    now: datetime

    def __call__(self, messages: Sequence[Mapping[str, Any]], generation: bool) -> str:
        return self.template.render(
            messages, self.tools, generation=generation, options=self.options, now=self.now
        )


class _View:
    """A conversation as the template writes it, with marks in the place of one reply."""

    def __init__(self, writer: _Writer, prepared: Sequence[dict[str, Any]], index: int) -> None:
        self._writer, self._prepared, self._index = writer, prepared, index
        self.text = writer(prepared, True)
        self._place = self.text.rfind(PLACE)
        self.after = self.text[self._place + len(PLACE) :] if self._place >= 0 else None
        alone = writer(prepared[: index + 1], False)
        self.after_alone = alone[alone.rfind(PLACE) + len(PLACE) :]

    def rewritten(self) -> str | None:
        """What the template writes otherwise than it did when the reply was sampled, None for nothing."""
        earlier = self._prepared[: self._index]
        if not earlier:
            return None
        before = self.text[: max(self._place, 0)]
        if not before.startswith(self._writer(earlier, False)):
            return "the chat template writes earlier messages otherwise than before"
        if self._has_thought() and _THOUGHT not in self.text:
            return "the chat template leaves out earlier thinking"
        follows = any(message.get("role") != "tool" for message in self._prepared[self._index + 1 :])
        if follows and not before.startswith(self._writer(earlier, True)):
            return "the chat template leaves out what it had put before the reply"
        return None

    def generation_prompt(self) -> str:
        """The end of the text, which begins the model's next turn."""
        return self.text[_common(self.text, self._writer(self._prepared, False)) :]

    def _has_thought(self) -> bool:
        return any(
            isinstance(value, str) and _THOUGHT in value for value in self._prepared[self._index].values()
        )


def _mark(reply: dict[str, Any], thinks: bool, style: Style) -> None:
    """Replace what the reply says by marks; names and ids stay, as templates look at them."""
    calls = reply.get("tool_calls")
    if calls:
        for call in calls:
            set_arguments(call, {}, style)
        set_arguments(calls[-1], {"_": PLACE}, style)
        reply["content"] = style.empty_content
    else:
        reply["content"] = PLACE
    reply.pop(style.thinking_field, None)
    if thinks:
        set_thinking(reply, _THOUGHT, style)


def _smaller_view(writer: _Writer, prepared: Sequence[dict[str, Any]], index: int) -> _View | None:
    """The view of the last reply with one call and what follows it, alone; None where that is refused."""
    reply = dict(prepared[index])
    if reply.get("tool_calls"):
        reply["tool_calls"] = reply["tool_calls"][-1:]
    first = next((m for m in prepared[:index] if m.get("role") == "user"), None)
    smaller = [*([first] if first else []), reply, *prepared[index + 1 :]]
    try:
        return _View(writer, smaller, len(smaller) - len(prepared) + index)
    except TemplateRefusal:
        return None


def _common(one: str, other: str) -> int:
    """Length of the common beginning."""
    if one.startswith(other):
        return len(other)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
