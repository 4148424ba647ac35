"""Families that write calls as ``<invoke name="N"><parameter name="K">V</parameter></invoke>``.

A block with tags of its own stands around all calls of a turn. Outside of a block nothing counts: such
tags are plain text that prose may quote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from environments.tool_call_parsers.base import CallStatus, Scan, ToolCallParser
from environments.tool_call_parsers.hermes_parser import read_json_block
from environments.tool_call_parsers.json_calls import NotACall, refuse
from environments.tool_call_parsers.json_scan import skip_blanks
from environments.tool_call_parsers.tag_scan import CompiledGrammar, TagGrammar, read_tagged_call

_BLANKS = re.compile(r"\s*")


@dataclass(frozen=True)
class Block:
    """The tags around calls, what every call begins and ends with, and the grammar of one call.

    ``before`` and ``after`` match what may stand around each call, with the blanks.
    """

    opening: str
    closing: str
    call_open: str
    call_close: str
    grammar: CompiledGrammar
    before: re.Pattern[str] = _BLANKS
    after: re.Pattern[str] = _BLANKS


class BlockParser(ToolCallParser):
    """The walk over blocks; a family says what its blocks look like, and any of them may come."""

    blocks: ClassVar[tuple[Block, ...]]

    def read(self, scan: Scan, start: int) -> int:
        """One block with all its calls, or a call without a block where the family has such."""
        text = scan.text
        block = next((block for block in self.blocks if text.startswith(block.opening, start)), None)
        body = start + len(block.opening) if block else start
        return self.read_block(scan, block or self.blocks[0], start, body)

    def name_of(self, scan: Scan, name: str) -> str:
        """The tool that is meant by the ``name`` in a call."""
        return name

    def read_block(self, scan: Scan, block: Block, start: int, body: int) -> int:
        """The calls from ``body`` on; the first of them takes what stands from ``start`` to it along."""
        text = scan.text
        begin, position = start, self.next_call(scan, block, body)
        if position < 0:
            return self._no_call(scan, block, start, skip_blanks(text, body))
        while position >= 0:
            try:
                call = read_tagged_call(scan, position, block.grammar)
            except NotACall as problem:
                begin = refuse(scan, begin, problem, block.call_open, block.call_close)
                position = self.next_call(scan, block, begin)
                continue
            end = _behind(block.after, text, call.end)
            closed = scan.at(block.closing, end)
            end += len(block.closing) * closed
            scan.accept(begin, end, self.name_of(scan, call.name), call.arguments, call.values)
            begin, position = end, -1 if closed else self.next_call(scan, block, end)
        return begin

    def next_call(self, scan: Scan, block: Block, position: int) -> int:
        """Where the next call of the same block begins, -1 where there is none."""
        following = _behind(block.before, scan.text, position)
        if block.grammar.call.match(scan.text, following):
            return following
        following, close = scan.find(block.call_open, position), scan.find(block.closing, position)
        if not 0 <= following < close or 0 <= scan.find(block.opening, position) < close:
            return -1  # text stands before it, and nothing shows yet that it is in this block
        return following if block.grammar.call.match(scan.text, following) else -1

    def _no_call(self, scan: Scan, block: Block, start: int, position: int) -> int:
        """A block without a call; its tag may be a word in a sentence."""
        rest = scan.text[position : position + len(block.call_open)]
        close, following = scan.find(block.closing, position), scan.find(block.opening, position)
        if block.call_open.startswith(rest) and (close < 0 or position + len(rest) == len(scan.text)):
            scan.reject(start, len(scan.text), CallStatus.TRUNCATED, "the text ends before a call")
            return len(scan.text)
        if close < 0 or 0 <= following < close:
            return position
        end = close + len(block.closing)
        if position < close:
            scan.reject(start, end, CallStatus.MALFORMED, "it holds no call that can be read")
        return end


def _behind(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def invoke_block(
    opening: str, closing: str, prefix: str = "", attribute: str = "", *, before: str = "", after: str = ""
) -> Block:
    """A block whose tags have names that begin with ``prefix``; ``attribute`` is a regular expression of
    what a parameter may have besides its name."""
    tag = re.escape(prefix)
    grammar = TagGrammar(
        call=rf"""<{tag}invoke\s+name=["'](?P<name>[^"'<>]*)["']\s*>""",
        call_close=f"</{prefix}invoke>",
        parameter=rf"""<{tag}parameter\s+name=["'](?P<key>[^"'<>]*)["']{attribute}\s*>""",
        parameter_close=f"</{prefix}parameter>",
        block_open=opening,
        block_close=closing,
    )
    around = re.compile(rf"\s*{before}\s*"), re.compile(rf"\s*{after}\s*")
    return Block(opening, closing, f"<{prefix}invoke", f"</{prefix}invoke>", grammar.compiled(), *around)


_DSML = "｜DSML｜"
_STRING = r"""(?:\s+string=["'](?P<string>true|false)["'])?"""


class DSMLParser(BlockParser):
    """DeepSeek V3.2 and V4: each parameter says whether its value is a string.

    The versions differ in the name of the block. The marker in every tag is a token, so that a call
    without a block is no prose.
    """

    blocks = (
        invoke_block(f"<{_DSML}tool_calls>", f"</{_DSML}tool_calls>", _DSML, _STRING),
        invoke_block(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", _DSML, _STRING),
    )
    opening = f"<{_DSML}tool_calls>|<{_DSML}function_calls>|<{_DSML}invoke"
    markers = (_DSML,)
    stop_texts = ("<｜end▁of▁sentence｜>",)

    def read(self, scan: Scan, start: int) -> int:
        """A block or a call, unless its marker was spelled out in text."""
        return super().read(scan, start) if scan.is_marker(_DSML, start + 1) else start + 1


class MiniMaxM2Parser(BlockParser):
    """MiniMax M2 to M2.7."""

    blocks = (invoke_block("<minimax:tool_call>", "</minimax:tool_call>"),)
    opening = "<minimax:tool_call>"
    markers = ("<minimax:tool_call>", "</minimax:tool_call>")
    stop_texts = ("[e~[\n", "[e~[")


class Step3Parser(BlockParser):
    """Step 3: each call between tokens of its own, too."""

    blocks = (
        invoke_block(
            "<｜tool_calls_begin｜>",
            "<｜tool_calls_end｜>",
            "steptml:",
            before=r"(?:<｜tool_call_begin(?:｜>|>｜>))?\s*(?:function)?\s*(?:<｜tool_sep｜>)?",
            after=r"(?:<｜tool_call_end｜>)?",
        ),
    )
    opening = "<｜tool_calls_begin｜>"
    markers = ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")
    stop_texts = ("<|EOT|>",)


class DotsParser(BlockParser):
    """Dots: tags, or JSON as Hermes writes it."""

    blocks = (invoke_block("<dots_function_call>", "</dots_function_call>"),)
    opening = blocks[0].opening
    markers = (blocks[0].opening, blocks[0].closing)
    stop_texts = ("<|endofresponse|>", "<|im_end|>")

    def read(self, scan: Scan, start: int) -> int:
        """One block of either form."""
        opening, closing = self.markers
        if scan.text.startswith(("{", "["), skip_blanks(scan.text, start + len(opening))):
            return read_json_block(scan, start, opening, closing)
        return super().read(scan, start)
