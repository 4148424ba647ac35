"""The format of Kimi K3: elements between three tokens, ``<|open|>NAME ATTRIBUTES<|sep|>`` and
``<|close|>NAME<|sep|>``.

A reply holds the channels ``think``, ``response`` and ``tools``; the last holds a ``call`` for each tool with
an ``argument`` for each value. Attributes are escaped, values are not; an argument says its type.
"""

from __future__ import annotations

import re

from environments.tool_call_parsers.base import Scan, Thinking
from environments.tool_call_parsers.invoke_parser import Block, BlockParser
from environments.tool_call_parsers.tag_scan import TagGrammar

_OPEN, _CLOSE, _SEP = "<|open|>", "<|close|>", "<|sep|>"


def _opened(name: str) -> str:
    return f"{_OPEN}{name}{_SEP}"


def _closed(name: str) -> str:
    return f"{_CLOSE}{name}{_SEP}"


def _unescape(attribute: str) -> str:
    return attribute.replace("&quot;", '"').replace("&amp;", "&")


_RESPONSE = (_opened("response"), _closed("response"))
_CALL_OPEN, _CALL_CLOSE = f"{_OPEN}call ", _closed("call")
_TAIL = rf'(?:\s+\w+="[^"<>]*")*\s*{re.escape(_SEP)}'
_GRAMMAR = TagGrammar(
    call=rf'{re.escape(_CALL_OPEN)}\s*tool="(?P<name>[^"<>]*)"{_TAIL}',
    call_close=_CALL_CLOSE,
    parameter=rf'{re.escape(_OPEN)}argument\s+key="(?P<key>[^"<>]*)"(?:\s+type="(?P<string>\w*)")?{_TAIL}',
    parameter_close=_closed("argument"),
    block_open=_opened("tools"),
    block_close=_closed("tools"),
    unescape=_unescape,
)


class KimiK3Parser(BlockParser):
    """Reads the channels of a reply."""

    blocks = (Block(_GRAMMAR.block_open, _GRAMMAR.block_close, _CALL_OPEN, _CALL_CLOSE, _GRAMMAR.compiled()),)
    opening = "|".join(map(re.escape, (blocks[0].opening, *_RESPONSE)))
    markers = (_OPEN, _CLOSE, _SEP)
    thinking = Thinking(_opened("think"), _closed("think"), ended_by=(blocks[0].opening,))
    stop_texts = (_closed("message"), "<|im_end|>", "<|end_of_msg|>")

    def read(self, scan: Scan, start: int) -> int:
        """The channel of calls, or a tag around the content, which is none of it."""
        for tag in _RESPONSE:
            if scan.at(tag, start):
                scan.drop(start, start + len(tag))
                return start + len(tag)
        return super().read(scan, start)
