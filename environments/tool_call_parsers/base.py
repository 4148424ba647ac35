"""What every tool-call parser shares: its interface, thinking, and the walk over the text.

A family says where a call may begin (``opening``) and reads from there (``read``); the walk finds the
next opening outside thinking and goes on where ``read`` stopped. Parsers keep no state, never raise on
any text, and take time and memory in proportion to it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from environments.tool_call_parsers.result import CallAttempt, CallStatus, ParseResult
from environments.tool_call_parsers.scan import Scan
from environments.tool_call_parsers.schema import ToolSchemas
from environments.tool_call_parsers.tokens import TokenDecoder, decode_with_markers

__all__ = ["CallAttempt", "CallStatus", "ParseResult", "Scan", "Thinking", "ToolCallParser"]


@dataclass(frozen=True, slots=True)
class Thinking:
    """The markers around a family's thinking.

    ``ended_by`` are further markers that end it without belonging to it: the family's rule that a
    call begun while thinking counts.
    """

    opening: str = "<think>"
    closing: str = "</think>"
    ended_by: tuple[str, ...] = ()


class ToolCallParser(ABC):
    """Reads tool calls out of raw text."""

    opening: ClassVar[str]
    """Regular expression of what a call, or a frame around calls, begins with: alternatives of
    literal text, so that searching is linear."""
    markers: ClassVar[tuple[str, ...]] = ()
    """Literal texts that count only as a token of their own where the tokenizer has such a token."""
    thinking: ClassVar[Thinking | None] = Thinking()
    stop_texts: ClassVar[tuple[str, ...]] = ()
    """Texts of stop tokens that are no content at the end of a reply."""

    def __init__(self, name: str) -> None:
        self.name = name
        thinking = self.thinking
        marks = (thinking.opening, thinking.closing) if thinking else ()
        self._next = re.compile("|".join([*map(re.escape, marks), self.opening]))

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: str = "",
        finished: bool = True,
    ) -> ParseResult:
        """The content and the calls of ``text``.

        ``tools`` are the offered tools in OpenAI's form: they give the types of arguments that the
        format itself leaves open, and tell unknown tools. ``generation_prompt`` is what the chat
        template put before the sampled text; it may have begun the thinking. ``finished`` is False for
        a reply that was cut off: then nothing counts that needed more text.
        """
        return self._parse(text, tools, generation_prompt, finished, None)

    def parse_tokens(
        self,
        ids: Sequence[int],
        tokenizer: TokenDecoder,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generation_prompt: str = "",
        finished: bool = True,
    ) -> ParseResult:
        """The same from token ids. Text that only looks like a marker, and was not sampled as the
        marker's token, is text. Spans are those of the decoded text."""
        thinking = self.thinking
        marks = (thinking.opening, thinking.closing, *thinking.ended_by) if thinking else ()
        text, places = decode_with_markers(ids, tokenizer, {*self.markers, *marks})
        return self._parse(text, tools, generation_prompt, finished, places)

    @abstractmethod
    def read(self, scan: Scan, start: int) -> int:
        """Read what begins with the opening at ``start`` and report it to ``scan``.

        Returns where the walk goes on; what was not reported stays content.
        """

    def walk(self, scan: Scan, generation_prompt: str) -> None:
        """Go through the whole text once. A family without openings may replace this."""
        position = self._open_thinking(scan, generation_prompt)
        while match := self._next.search(scan.text, position):
            start, mark = match.start(), match.group()
            if not scan.is_marker(mark, start):
                position = start + 1
            elif self.thinking and mark == self.thinking.opening:
                position = self._think(scan, start, match.end()) if scan.runnable else match.end()
            elif self.thinking and mark == self.thinking.closing:
                if not generation_prompt and not scan.has_thought:
                    # Nobody said how the reply began: the template had opened the thinking.
                    scan.forget()
                    scan.think(0, 0, start, match.end(), closed=True)
                position = match.end()
            else:
                position = max(self.read(scan, start), start + 1)

    def _parse(
        self,
        text: str,
        tools: Sequence[Mapping[str, Any]] | None,
        generation_prompt: str,
        finished: bool,
        places: Mapping[str, frozenset[int]] | None,
    ) -> ParseResult:
        text = _without_stop_texts(text, self.stop_texts)
        scan = Scan(text, ToolSchemas(tools), finished=finished, markers=places)
        self.walk(scan, generation_prompt)
        return scan.result()

    def _open_thinking(self, scan: Scan, generation_prompt: str) -> int:
        thinking = self.thinking
        if thinking is None:
            return 0
        opened = generation_prompt.rfind(thinking.opening)
        if opened < 0 or opened < generation_prompt.rfind(thinking.closing):
            return 0
        blanks = len(scan.text) - len(scan.text.lstrip())
        if scan.at(thinking.opening, blanks):  # some models open it once more
            return self._think(scan, blanks, blanks + len(thinking.opening))
        return self._think(scan, 0, 0)

    def _think(self, scan: Scan, start: int, body: int) -> int:
        """Report thinking whose text begins at ``body``; returns where the walk goes on."""
        assert self.thinking is not None
        closing = scan.find(self.thinking.closing, body)
        ends = [found for mark in self.thinking.ended_by if (found := scan.find(mark, body)) >= 0]
        if ends and (closing < 0 or min(ends) < closing):
            scan.think(start, body, min(ends), min(ends), closed=True)
            return min(ends)
        if closing >= 0:
            end = closing + len(self.thinking.closing)
            scan.think(start, body, closing, end, closed=True)
            return end
        scan.think(start, body, len(scan.text), len(scan.text), closed=False)
        scan.runnable = False  # What follows is read only to say that it does not count.
        return body if scan.finished else len(scan.text)


def _without_stop_texts(text: str, stop_texts: tuple[str, ...]) -> str:
    if not stop_texts:
        return text
    end = len(text)
    while stop := next((s for s in stop_texts if text.endswith(s, 0, end)), None):
        end -= len(stop)
    return text[:end]
