"""Values written as plain text: the schema says what they are, then JSON does."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tool_call_parsers.python_scan import NotPython, parse_literal
from environments.tool_call_parsers.schema import ToolSchemas


def read(text: str, schema: dict[str, Any], **root: Any) -> Any:
    parameters = {"type": "object", "properties": {"x": schema}, **root}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    value, written = ToolSchemas(tools).value("f", "x", text)
    assert json.loads(written) == value or value != value
    return value


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_string_keeps_every_byte(text: str) -> None:
    assert read(text, {"type": "string"}) == text


@pytest.mark.parametrize("text", ["123", "1e5", "true", "null", '{"a": 1}', '"quoted"', "  indented\n\n", ""])
def test_a_string_stays_one_whatever_it_looks_like(text: str) -> None:
    assert read(text, {"type": "string"}) == text
    assert read(text, {"enum": ["a", "b"]}) == text
    assert read(text, {"anyOf": [{"type": "string"}, {"type": "integer"}]}) == text


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", {"type": "integer"}, 5),
        (" 5\n", {"type": "integer"}, 5),
        ("5", {"type": ["integer", "null"]}, 5),
        ("null", {"type": ["integer", "null"]}, None),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string", "nullable": True}, None),
        ("None", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ("nullable", {"type": ["string", "null"]}, "nullable"),
        ("3.5", {"type": "float"}, 3.5),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ("1", {"type": "boolean"}, 1),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("['a', None]", {"type": "array"}, ["a", None]),
        ("{'a': True}", {"type": "object"}, {"a": True}),
        ("x", {"type": "integer"}, "x"),
        ("x", {"$ref": "#/$defs/word"}, "x"),
        ("7", {"$ref": "#/$defs/word"}, "7"),
        ("7", {"$ref": "#/$defs/count"}, 7),
        ("7", {"$ref": "#/$defs/loop"}, 7),
        ("7", {"const": 7}, 7),
        ("7", {}, 7),
        ("seven", {}, "seven"),
        ("True", {}, True),
        ("['a']", {}, "['a']"),
        ("NaN", {"type": "number"}, "NaN"),
    ],
)
def test_types(text: str, schema: dict[str, Any], value: Any) -> None:
    definitions = {
        "word": {"type": "string"},
        "count": {"type": "integer"},
        "loop": {"$ref": "#/$defs/loop"},
    }
    found = read(text, schema, **{"$defs": definitions})
    assert found == value
    assert type(found) is type(value)


def test_numbers_are_written_as_the_model_wrote_them() -> None:
    tools = [{"name": "f", "parameters": {"properties": {"x": {"type": "number"}}}}]
    assert ToolSchemas(tools).value("f", "x", "1e5") == (100000.0, "1e5")
    assert ToolSchemas(tools).value("f", "x", "1" * 30)[1] == "1" * 30


@pytest.mark.parametrize("tools", [None, [], [{}], [{"function": None}], [{"name": 1}], ["junk"]])
def test_tools_that_say_nothing(tools: Any) -> None:
    assert ToolSchemas(tools).value("f", "x", "5") == (5, "5")


literals = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(literals)
def test_what_python_writes_is_read_back(value: Any) -> None:
    assert parse_literal(repr(value)) == value


@given(st.text(st.sampled_from(list("[](){}'\"\\,: \n1.e+-xTrueNon")), max_size=30))
def test_literals_agree_with_python(text: str) -> None:
    try:
        value = parse_literal(text)
    except NotPython:
        return
    try:
        expected = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return  # JSON's words, line breaks in strings and leading zeros are let pass
    assert value == _with_lists(expected)


def _with_lists(value: Any) -> Any:
    """JSON has no tuples."""
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_lists(item) for key, item in value.items()}
    return value
