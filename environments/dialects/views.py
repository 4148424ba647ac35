"""A conversation as the chat template writes it, seen from one reply in it.

The reply is replaced by marks before it is rendered, so that its place can be found whatever it says:
what stands before it shows whether the template writes history as it did before, and what follows it is
what a sequence that ends with the reply goes on with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from environments.dialects.marks import PLACE, THOUGHT
from environments.dialects.messages import Style, set_arguments, set_thinking
from environments.dialects.template import ChatTemplate, TemplateRefusal

Prepared = Sequence[dict[str, Any]]
"""Messages in the template's form, with their content marked."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Renders with everything but the messages fixed, the time included."""

    template: ChatTemplate
    tools: Sequence[Mapping[str, Any]] | None
    options: Mapping[str, Any]
    now: datetime

    def __call__(self, messages: Prepared, generation: bool) -> str:
        return self.template.render(
            messages, self.tools, generation=generation, options=self.options, now=self.now
        )

    def generation_prompt(self, messages: Prepared, text: str) -> str:
        """What of ``text``, the rendered ``messages``, is there for the model's turn only."""
        return text[common(text, self(messages, False)) :]


def mark_reply(reply: dict[str, Any], thinks: bool, style: Style) -> None:
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
        set_thinking(reply, THOUGHT, style)


class View:
    """The conversation ``prepared`` whose reply at ``index`` has been marked.

    ``after`` is the text that follows the reply, None where the template leaves the reply out.
    Raises ``TemplateRefusal``.
    """

    def __init__(self, writer: Writer, prepared: Prepared, index: int) -> None:
        self._writer, self._prepared, self._index = writer, prepared, index
        self._text = writer(prepared, True)
        place = self._text.rfind(PLACE)
        self._before = self._text[: max(place, 0)]
        self.after = after_place(self._text) if place >= 0 else None

    def ends(self) -> Iterator[str]:
        """What the template writes after the reply where nothing follows it: as it is in a short
        conversation, and then in the whole one, for templates that count their calls."""
        for messages, index in (shortened(self._prepared, self._index), (self._prepared, self._index)):
            try:
                yield after_place(self._writer(messages[: index + 1], False))
            except TemplateRefusal:
                continue

    def rewritten(self) -> str | None:
        """What the template writes otherwise than it did when the reply was sampled, None for nothing."""
        earlier = self._prepared[: self._index]
        if not earlier:
            return None
        if not self._before.startswith(self._writer(earlier, False)):
            return "the chat template writes earlier messages otherwise than before"
        if self._has_thought() and THOUGHT not in self._text:
            return "the chat template leaves out earlier thinking"
        follows = any(message.get("role") != "tool" for message in self._prepared[self._index + 1 :])
        if follows and not self._before.startswith(self._writer(earlier, True)):
            return "the chat template leaves out what it had put before the reply"
        return None

    def generation_prompt(self) -> str:
        """The end of the text, which begins the model's next turn."""
        short, _ = shortened(self._prepared, self._index)
        try:
            prompt = self._writer.generation_prompt(short, self._writer(short, True))
            if self._text.endswith(prompt):
                return prompt
        except TemplateRefusal:
            pass  # Then the whole conversation shows it.
        return self._writer.generation_prompt(self._prepared, self._text)

    def _has_thought(self) -> bool:
        reply = self._prepared[self._index]
        return any(isinstance(value, str) and THOUGHT in value for value in reply.values())


def view_of_one_call(writer: Writer, prepared: Prepared, index: int) -> View | None:
    """The view of a reply with its last call only, for templates that refuse several; None where this
    is refused, too."""
    short, place = shortened(prepared, index)
    calls = short[place].get("tool_calls")
    if calls:
        short[place] = {**short[place], "tool_calls": calls[-1:]}
    try:
        return View(writer, short, place)
    except TemplateRefusal:
        return None


def shortened(prepared: Prepared, index: int) -> tuple[list[dict[str, Any]], int]:
    """The reply at ``index`` and what follows it, after one user message; and the reply's index."""
    asked = next(([m] for m in prepared[:index] if m.get("role") == "user"), [])
    return [*asked, *prepared[index:]], len(asked)


def after_place(text: str) -> str:
    """What stands behind the mark."""
    return text[text.rfind(PLACE) + len(PLACE) :]


def common(one: str, other: str) -> int:
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
