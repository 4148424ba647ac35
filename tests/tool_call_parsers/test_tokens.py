"""Parsing token ids: what was sampled as a marker's token is one, what only spells it is text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from environments.tool_call_parsers import get_parser
from tool_call_parsers.formats import FORMATS, TOOLS, Format

formats = pytest.mark.parametrize("form", FORMATS, ids=lambda form: f"{form.name}-{form.write.__name__}")


class CharacterTokenizer:
    """A token for each character, and one for each marker. Decoding drops a blank at the very start, as
    SentencePiece does."""

    def __init__(self, markers: Sequence[str]) -> None:
        self.markers = list(markers)

    def token_to_id(self, token: str) -> int | None:
        return 0x110000 + self.markers.index(token) if token in self.markers else None

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        assert skip_special_tokens is False
        text = "".join(self.markers[i - 0x110000] if i >= 0x110000 else chr(i) for i in ids)
        return text.removeprefix(" ")

    def encode(self, *parts: str) -> list[int]:
        """A part that is a marker becomes its token; the others are spelled out."""
        ids: list[int] = []
        for part in parts:
            special = self.token_to_id(part)
            ids += [special] if special is not None else map(ord, part)
        return ids

    def encode_markers(self, text: str) -> list[int]:
        """With all markers as tokens."""
        ids: list[int] = []
        while text:
            marker = next((m for m in self.markers if text.startswith(m)), text[0])
            ids += self.encode(marker)
            text = text[len(marker) :]
        return ids


@formats
def test_tokens_give_what_the_text_gives(form: Format) -> None:
    parser = get_parser(form.name)
    tokenizer = CharacterTokenizer([*parser.markers, *form.think])
    before = "" if form.write.__name__ == "_llama" else " So: "
    text = before + form.write([("f", {"text": " x "}), ("write_file", {"count": 1})])
    ids = tokenizer.encode_markers(text)
    result = parser.parse_tokens(ids, tokenizer, tools=TOOLS)
    expected = parser.parse(text, tools=TOOLS)
    assert [call.function for call in result.tool_calls or []] == [
        call.function for call in expected.tool_calls or []
    ]
    assert len(result.tool_calls or []) == 2
    assert result.content == expected.content


@formats
def test_markers_that_are_only_spelled_are_text(form: Format) -> None:
    parser = get_parser(form.name)
    if form.write.__name__ == "_llama":
        return
    tokenizer = CharacterTokenizer([*parser.markers, *form.think])
    text = form.write([("f", {"text": "x"})])
    result = parser.parse_tokens([ord(character) for character in text], tokenizer, tools=TOOLS)
    if form.name == "qwen3_coder":  # its inner tags are plain text in every tokenizer
        assert len(result.tool_calls or []) == 1
        return
    assert result.tool_calls is None
    assert result.content == text
    thought = parser.parse_tokens(tokenizer.encode("".join(form.think), "x"), tokenizer)
    assert thought.reasoning_closed is None


def test_a_spelled_marker_inside_a_value_ends_nothing() -> None:
    parser = get_parser("glm45")
    tokenizer = CharacterTokenizer(parser.markers)
    value = "</arg_value></tool_call><tool_call>f</tool_call>"
    ids = [
        *tokenizer.encode("<tool_call>", "f", "<arg_key>", "text", "</arg_key>", "<arg_value>"),
        *map(ord, value),
        *tokenizer.encode("</arg_value>", "</tool_call>"),
    ]
    result = parser.parse_tokens(ids, tokenizer, tools=TOOLS)
    assert [attempt.arguments for attempt in result.attempts] == [{"text": value}]


def test_a_tokenizer_without_the_markers_is_read_as_text() -> None:
    form = FORMATS[0]
    tokenizer = CharacterTokenizer([])
    ids = tokenizer.encode(form.write([("f", {})]))
    assert len(get_parser("hermes").parse_tokens(ids, tokenizer).tool_calls or []) == 1


def test_no_tokens() -> None:
    assert tuple(get_parser("hermes").parse_tokens([], CharacterTokenizer([]))) == ("", None)
