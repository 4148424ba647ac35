"""Time and memory stay in proportion to the text, whatever it is made of.

CPU time is compared between a text and one eight times as long: linear work takes 8 times as long, the
quadratic work of a careless scan 64 times. The bound between leaves room for a busy machine.
"""

from __future__ import annotations

import itertools
import json
import time
import tracemalloc
from collections.abc import Callable

import pytest

from environments.tool_call_parsers import CallStatus, ToolCallParser, get_parser
from tool_call_parsers.formats import FORMATS, TOOLS, Format
from tool_call_parsers.further_formats import FURTHER_FORMATS

SHORT = 3_000
SAME_CODE = ("qwen", "glm47")
BY_NAME = {form.name: form for form in (*FORMATS, *FURTHER_FORMATS) if form.name not in SAME_CODE}
by_name = pytest.mark.parametrize("form", BY_NAME.values(), ids=BY_NAME.keys())


def cpu_seconds(parser: ToolCallParser, text: str) -> float:
    started = time.process_time()
    parser.parse(text, tools=TOOLS)
    return time.process_time() - started


def grows_linearly(measure: Callable[[int], float]) -> bool:
    """Whether eight times the size costs no more than 24 times; a busy machine gets more tries."""
    return any(measure(8) < 24 * max(measure(1), 0.004) for _ in range(3))


@by_name
def test_repeated_pieces(form: Format) -> None:
    parser = get_parser(form.name)
    marks = (*form.marks[:4], *form.think, *form.broken[:2])
    for first, second in itertools.product(marks, repeat=2):
        piece = first + second
        count = SHORT // len(piece) + 1

        def measure(factor: int, piece: str = piece, count: int = count) -> float:
            return cpu_seconds(parser, form.marks[0] + piece * (count * factor))

        assert grows_linearly(measure), piece


@by_name
def test_openings_that_lead_nowhere(form: Format) -> None:
    parser, count = get_parser(form.name), 12_500 if form in FORMATS else 2_500
    for piece in (form.marks[0], form.marks[0] + "{"):

        def measure(factor: int, piece: str = piece) -> float:
            started = time.process_time()
            assert parser.parse(piece * (count * factor), tools=TOOLS).tool_calls is None
            return time.process_time() - started

        assert grows_linearly(measure), piece


@pytest.mark.parametrize("nested", ["[", '{"text":', '{"name": "f", "arguments": {"text": ['])
@by_name
def test_deep_nesting_is_refused_and_raises_nothing(form: Format, nested: str) -> None:
    whole = form.write([("f", {"items": [1]})])
    begin = whole.index("[1]" if "[1]" in whole else "1")
    deep = whole[:begin] + nested * 50_000 + whole[begin:]
    parser = get_parser(form.name)
    assert parser.parse(deep, tools=TOOLS).attempts or form in FURTHER_FORMATS
    assert parser.parse(nested * 50_000, tools=TOOLS).tool_calls is None


@by_name
def test_an_argument_of_ten_million_characters(form: Format) -> None:
    text = ('def f(x):\n\treturn "é" < \\x  # </b>\n' * 300_000)[:10_000_000]
    whole = form.write([("write_file", {"text": text})])
    parser = get_parser(form.name)
    calls = parser.parse(whole, tools=TOOLS).tool_calls or []
    assert json.loads(calls[0].function.arguments) == {"text": text}
    cut = parser.parse(whole[:-1_000], tools=TOOLS)
    assert [attempt.status for attempt in cut.attempts] == [CallStatus.TRUNCATED]
    del calls, cut
    if form in FURTHER_FORMATS:
        return  # they are made of the same parts; to watch the memory costs a lot of time
    tracemalloc.start()
    try:
        parser.parse(whole, tools=TOOLS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(whole)  # a Python string of these characters takes one or two bytes for each
