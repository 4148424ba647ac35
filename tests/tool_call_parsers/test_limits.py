"""What a call may hold: no more than all that work with it afterwards can bear."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from environments.tool_call_parsers import get_parser
from environments.tool_call_parsers.json_scan import MAX_DEPTH
from tool_call_parsers.formats import FORMATS, TOOLS, Format
from tool_call_parsers.further_formats import FURTHER_FORMATS

BY_NAME = {form.name: form for form in (*FORMATS, *FURTHER_FORMATS)}
by_name = pytest.mark.parametrize("form", BY_NAME.values(), ids=BY_NAME.keys())


def depth_of(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max((depth_of(entry) for entry in inside), default=0)


@pytest.mark.parametrize("depth", [60, 120, 300, 700, 950])
@by_name
def test_arguments_that_are_nested_deeply(form: Format, depth: int) -> None:
    whole = form.write([("f", {"items": [1]})])
    listed = "[1]" if "[1]" in whole else "1"
    deep = whole.replace(listed, "[" * depth + "]" * depth, 1)
    result = get_parser(form.name).parse(deep, tools=TOOLS)
    for call in result.tool_calls or []:
        assert depth_of(json.loads(call.function.arguments)) <= MAX_DEPTH
    if depth < MAX_DEPTH and listed == "[1]":
        assert result.tool_calls


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5_000, "1e" + "9" * 50])
@by_name
def test_a_number_that_no_reader_could_take_is_no_number(form: Format, number: str) -> None:
    whole = form.write([("f", {"n": 7})]).replace("7", number)
    for call in get_parser(form.name).parse(whole, tools=TOOLS).tool_calls or []:
        (value,) = json.loads(call.function.arguments).values()
        assert isinstance(value, str) or math.isfinite(value)
