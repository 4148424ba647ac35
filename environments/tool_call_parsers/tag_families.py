"""Families with the tags of Qwen3-Coder or of GLM under names of their own."""

from __future__ import annotations

import re
from typing import ClassVar

from environments.tool_call_parsers.base import Scan, Thinking
from environments.tool_call_parsers.framed_parser import FramedParser, header_text
from environments.tool_call_parsers.glm45_parser import Glm45Parser
from environments.tool_call_parsers.invoke_parser import Block, BlockParser
from environments.tool_call_parsers.json_scan import skip_blanks
from environments.tool_call_parsers.qwen3_coder_parser import Qwen3CoderParser, function_grammar
from environments.tool_call_parsers.tag_scan import TagGrammar


class MiMoParser(Qwen3CoderParser):
    """MiMo V2: the tags of Qwen3-Coder with the values on the lines of their tags."""

    grammar = function_grammar(Qwen3CoderParser.tag_open, Qwen3CoderParser.tag_close, newline=False)


class SeedOSSParser(Qwen3CoderParser):
    """Seed-OSS: functions between tags of its own, with the values on the lines of their tags."""

    tag_open, tag_close = "<seed:tool_call>", "</seed:tool_call>"
    opening = f"{tag_open}|<function="
    markers = (tag_open, tag_close)
    thinking = Thinking("<seed:think>", "</seed:think>")
    stop_texts = ("<seed:eos>",)
    grammar = function_grammar(tag_open, tag_close, newline=False)


class PoolsideParser(Glm45Parser):
    """Laguna: the keys and values of GLM."""

    stop_texts = ("</assistant>", "</assistant>\n")


_RELEASED = ":opensource>"


def _hunyuan_block(suffix: str) -> Block:
    opening, closing = f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"
    call_open, call_close = f"<tool_call{suffix}>", f"</tool_call{suffix}>"
    grammar = TagGrammar(
        call=rf"{call_open}(?P<name>[^<>{{]*)<tool_sep{suffix}>",
        call_close=call_close,
        parameter=rf"<arg_key{suffix}>(?P<key>[^<>]*)</arg_key{suffix}>\s*<arg_value{suffix}>",
        parameter_close=f"</arg_value{suffix}>",
        block_open=opening,
        block_close=closing,
    )
    return Block(opening, closing, call_open, call_close, grammar.compiled())


class HunyuanV3Parser(BlockParser):
    """Hunyuan 3: keys and values in tags."""

    suffix: ClassVar[str] = ""
    blocks = (_hunyuan_block(suffix),)
    opening = blocks[0].opening
    markers = (blocks[0].opening, blocks[0].closing, blocks[0].call_open, blocks[0].call_close)
    stop_texts = ("<｜hy_eos｜>", "<｜hy_eos:opensource｜>")

    def walk(self, scan: Scan, generation_prompt: str) -> None:
        """As the reply says: the names of all tags end alike, and the released model has another end."""
        released = _RELEASED in generation_prompt or _RELEASED in scan.text
        parser = Hunyuan3Parser(self.name) if released else self
        super(HunyuanV3Parser, parser).walk(scan, generation_prompt)


class Hunyuan3Parser(HunyuanV3Parser):
    """The released Hunyuan 3: the names of its tags end with ``:opensource``."""

    suffix = ":opensource"
    blocks = (_hunyuan_block(suffix),)
    opening = blocks[0].opening
    thinking = Thinking("<think:opensource>", "</think:opensource>")


class HunyuanParser(FramedParser):
    """Hunyuan 7B and smaller: a name and JSON in a fence, in tags."""

    frame_open, frame_close = "<tool_calls>", "</tool_calls>"
    call_open, call_close = "<tool_call>", "</tool_call>"
    markers = (frame_open, frame_close, call_open, call_close)
    stop_texts = ("<|eos|>", "<|extra_4|>")
    _fence_end = re.compile(r"\s*```\s*")

    def read_header(self, scan: Scan, position: int) -> tuple[str, str | None, int]:
        """The name, up to the fence."""
        name, after = header_text(scan, position, "```json", (self.call_open, self.call_close))
        return name, None, skip_blanks(scan.text, after)

    def after_arguments(self, scan: Scan, position: int) -> int:
        """Past the end of the fence."""
        match = self._fence_end.match(scan.text, position)
        return match.end() if match else position
