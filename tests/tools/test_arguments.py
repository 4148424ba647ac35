from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools.arguments import parse_arguments, validate
from environments.tools.base import Tool, ToolInputError
from environments.tools.registry import all_tools, get_tool

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
tools = st.sampled_from(sorted(all_tools()))


async def _unused(state: Any) -> dict[str, Any]:
    raise AssertionError


def tool_with(required: tuple[str, ...] = (), **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool("sample", "", schema, _unused, "test")


@pytest.mark.parametrize(
    "raw",
    ['{"path": "a", "path": "b"}', json.dumps('{"path": "a", "path": "b"}'), '{"x": {"path": 1, "path": 1}}'],
)
def test_a_parameter_that_is_given_twice_is_not_chosen_from(raw: str) -> None:
    with pytest.raises(ToolInputError, match="'path' is given twice"):
        parse_arguments(raw)


@pytest.mark.parametrize("raw", [None, "", "  ", "null", '"null"', '""', "{}", {}, '"{}"'])
def test_nothing_means_no_arguments(raw: Any) -> None:
    assert parse_arguments(raw) == {}


@pytest.mark.parametrize(
    "raw",
    [{"path": "a"}, '{"path": "a"}', ' {"path": "a"}\n', json.dumps('{"path": "a"}')],
)
def test_object_text_and_text_in_text(raw: Any) -> None:
    assert parse_arguments(raw) == {"path": "a"}


@pytest.mark.parametrize(
    "raw", [[], "[1]", 3, "3", True, "true", '"word"', b"{}", '"[1]"', 2.5, '"\\"{}\\""']
)
def test_what_is_no_object_says_so(raw: Any) -> None:
    with pytest.raises(ToolInputError, match=r"JSON"):
        parse_arguments(raw)


def test_broken_json_is_shown_with_its_position() -> None:
    with pytest.raises(ToolInputError, match=r"at character 16 of 20, near .*\"a\" \"b\""):
        parse_arguments('{"command": "a" "b"}')


def test_line_breaks_inside_a_string_have_one_reading() -> None:
    assert parse_arguments('{"content": "a\nb"}') == {"content": "a\nb"}


@pytest.mark.parametrize(
    "raw", ['{"a": NaN}', '{"a": Infinity}', "[" * 100_000, '{"a":' * 100_000, "9" * 5000]
)
def test_json_that_python_reads_but_json_is_not(raw: str) -> None:
    with pytest.raises(ToolInputError):
        parse_arguments(raw)


@given(json_values | st.binary(max_size=5), tools)
def test_any_value_is_arguments_or_a_helpful_error(raw: Any, name: str) -> None:
    for form in (raw, json.dumps(raw) if not isinstance(raw, bytes) else raw):
        try:
            values = validate(get_tool(name), parse_arguments(form))
        except ToolInputError as error:
            assert str(error)
        else:
            assert set(values) <= set(get_tool(name).parameters["properties"])


@given(st.text(), tools)
def test_any_text_is_arguments_or_a_helpful_error(raw: str, name: str) -> None:
    try:
        validate(get_tool(name), parse_arguments(raw))
    except ToolInputError as error:
        assert str(error)


@given(tools, st.data())
def test_any_value_of_a_known_parameter(name: str, data: st.DataObject) -> None:
    properties = get_tool(name).parameters["properties"]
    known = st.sampled_from(sorted(properties)) if properties else st.nothing()
    arguments = data.draw(st.dictionaries(known, json_values))
    try:
        values = validate(get_tool(name), arguments)
    except ToolInputError as error:
        assert name in str(error)
    else:
        kinds = {"string": str, "integer": int, "boolean": bool, "array": list}
        for key, value in values.items():
            assert isinstance(value, kinds[properties[key]["type"]])


@pytest.mark.parametrize(
    ("schema", "given", "expected"),
    [
        ({"type": "integer"}, "5", 5),
        ({"type": "integer"}, " -7 ", -7),
        ({"type": "integer"}, 5.0, 5),
        ({"type": "number"}, "2.5", 2.5),
        ({"type": "number"}, 3, 3),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "string"}, 5, "5"),
        ({"type": "string"}, 1.5, "1.5"),
        ({"type": "string"}, "007", "007"),
        ({"type": "string"}, "", ""),
        ({"type": "array"}, '["a"]', ["a"]),
        ({"type": "object"}, '{"a": 1}', {"a": 1}),
        ({"type": "string", "enum": ["Replace", "patch"]}, "PATCH", "patch"),
        ({"type": "string", "enum": ["Replace", "patch"]}, "replace", "Replace"),
    ],
)
def test_lossless_conversions(schema: Any, given: Any, expected: Any) -> None:
    value = validate(tool_with(x=schema), {"x": given})["x"]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("schema", "given", "message"),
    [
        ({"type": "integer"}, "5.5", "must be an integer, not the text '5.5'"),
        ({"type": "integer"}, 5.5, "must be an integer"),
        ({"type": "integer"}, True, "must be an integer, not true"),
        ({"type": "integer"}, "five", "must be an integer"),
        ({"type": "integer", "minimum": 1}, 0, "at least 1"),
        ({"type": "integer", "maximum": 2000}, 2001, "at most 2000"),
        ({"type": "number"}, "nan", "must be a number"),
        ({"type": "number"}, "1e999", "must be a finite number"),
        ({"type": "boolean"}, 1, "must be true or false"),
        ({"type": "boolean"}, "yes", "must be true or false"),
        ({"type": "string"}, {"a": 1}, "must be a string, not an object"),
        ({"type": "string"}, ["a"], "must be a string, not an array of 1"),
        ({"type": "string"}, True, "must be a string, not true"),
        ({"type": "string"}, "\ud800", "lone surrogate"),
        ({"type": "array"}, "a, b", "must be an array"),
        ({"type": "array", "maxItems": 1}, [1, 2], "at most 1 entries"),
        ({"type": "array", "items": {"type": "integer"}}, [1, "x"], r"x\[1\] must be an integer"),
        ({"type": "object"}, 3, "must be an object"),
        ({"type": "string", "enum": ["a", "b"]}, "c", "must be one of a, b"),
    ],
)
def test_everything_else_is_an_error_that_says_what(schema: Any, given: Any, message: str) -> None:
    with pytest.raises(ToolInputError, match=message):
        validate(tool_with(x=schema), {"x": given})


def test_all_problems_are_reported_at_once_with_the_parameters() -> None:
    with pytest.raises(ToolInputError) as caught:
        validate(get_tool("write_file"), {"file_path": "a", "contnet": "b"})
    text = str(caught.value)
    assert "no parameter 'file_path' (did you mean path?)" in text
    assert "no parameter 'contnet' (did you mean content?)" in text
    assert "path is missing; content is missing" in text
    assert "Parameters of write_file: path: string, content: string" in text


def test_defaults_are_filled_in_and_null_means_not_given() -> None:
    values = validate(get_tool("read_file"), {"path": "a", "limit": None})
    assert values == {"path": "a", "offset": 1, "limit": 500}


def test_null_for_a_required_parameter_is_an_error() -> None:
    with pytest.raises(ToolInputError, match="path must be a string, not null"):
        validate(get_tool("read_file"), {"path": None})


def test_a_required_parameter_with_a_default_may_be_left_out() -> None:
    assert validate(get_tool("patch"), {"path": "a"})["mode"] == "replace"


def test_entries_of_arrays_are_checked_too() -> None:
    with pytest.raises(ToolInputError, match=r"todos\[0\]\.status must be one of.*todos\[1\]\.id is missing"):
        validate(
            get_tool("todo"),
            {"todos": [{"id": 1, "content": "x", "status": "done"}, {"content": "y", "status": "pending"}]},
        )
