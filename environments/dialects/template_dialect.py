"""The dialect that a chat template defines, for any model family.

A turn is appended by rendering the whole conversation with a mark in the place of the last reply, and
taking what the template wrote after it. The reply itself is never rendered for this: its tokens are
those that were sampled. Where the template writes something else in the place of earlier messages than
it did before, such as leaving out thinking, the conversation must fork.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from environments.dialects.base import MustFork, Rendered
from environments.dialects.families import Family
from environments.dialects.messages import Style, has_thinking, to_template
from environments.dialects.template import ChatTemplate, TemplateRefusal
from environments.dialects.tokenizer import ChatTokenizer, ControlToken
from environments.dialects.views import View, Writer, common, mark_reply, view_of_one_call
from environments.errors import BadRequest, ConfigError
from environments.records import Message
from environments.tool_call_parsers.base import ParseResult, ToolCallParser

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
        writer = self.writer(tools)
        prepared = self.prepare(messages)
        text = writer(prepared, generation)
        prompt = writer.generation_prompt(prepared, text) if generation else ""
        return Rendered(self.tokenizer.encode(text), prompt)

    def bridge(
        self, sequence: Sequence[int], messages: Sequence[Message], tools: Tools, *, new: int
    ) -> Rendered | MustFork:
        """What to append to ``sequence``, or why it cannot go on. See ``Dialect``."""
        try:
            prepared = self.prepare(messages)
        except BadRequest as refusal:
            return MustFork(str(refusal))
        index = len(prepared) - new - 1
        follows_template = self.thinking == "template"
        mark_reply(prepared[index], follows_template and has_thinking(messages[index]), self.style)
        writer = self.writer(tools)
        view: View | None
        try:
            view = View(writer, prepared, index)
            if follows_template and view.after is not None and (reason := view.rewritten()):
                return MustFork(reason)
        except TemplateRefusal as refusal:
            # Some templates refuse what models do, such as two calls at once.
            view = view_of_one_call(writer, prepared, index)
            if view is None:
                return MustFork(str(refusal))
        if view.after is None:
            return MustFork("the chat template leaves out the calls or the text of the last reply")
        tail = self._after_reply(view.after, view.ends(), sequence)
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

    def writer(self, tools: Tools) -> Writer:
        """What renders conversations with these tools, now."""
        marked = self.tokenizer.guard.everywhere(list(tools), ends=False) if tools else None
        return Writer(self.template, marked, self.options, datetime.now())

    def prepare(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Messages in the template's form, with their content marked. Raises ``BadRequest``."""
        return self.family.prepare(to_template(messages, self.tokenizer.guard, self.style))

    def _after_reply(self, after: str, ends: Iterable[str], sequence: Sequence[int]) -> str:
        """The text to append: what follows the reply in the rendered conversation, from the end of
        the model's turn on, without a stop token that the model has already sampled."""
        border = self._border(after, ends)
        if isinstance(border, int):
            return after[border:]
        last = sequence[-1] if sequence else None
        if last == border.token.id or (border.ends_turn and last in self.stop_token_ids):
            return after[border.end :]
        return after[border.start :]

    def _border(self, after: str, ends: Iterable[str]) -> _Border | int:
        """The token at which the model's turn ends, or the place where there is none.

        ``ends`` are what the template writes after the same reply where nothing follows it.
        """
        controls = self.tokenizer.find_controls(after)
        alone = ""
        for alone in ends:
            stop = self._first_stop(self.tokenizer.find_controls(alone))
            if stop is not None and after.startswith(alone[: stop.start]):
                # A template may end its last turn with another token than the turns before.
                found = next((control for control in controls if control[0] == stop.start), None)
                if found is not None:
                    return _Border(*found, ends_turn=found[2].text not in self.family.opens_next)
        shared = common(after, alone)
        following = self._first_stop(controls)
        if following is not None and not after[shared : following.start].strip():
            return replace(following, ends_turn=False)
        return shared

    def _first_stop(self, controls: Iterable[tuple[int, int, ControlToken]]) -> _Border | None:
        for control in controls:
            if control[2].id in self.stop_token_ids:
                return _Border(*control)
        return None


@dataclass(frozen=True, slots=True)
class _Border:
    """A control token in a text. ``ends_turn`` tells the end of a turn from the beginning of the next."""

    start: int
    end: int
    token: ControlToken
    ends_turn: bool = True
