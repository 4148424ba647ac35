"""Tools made of a user's functions."""

from __future__ import annotations

import asyncio
import json
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from environments.tools.base import ToolInputError, ToolState
from environments.tools.custom import tool
from environments.tools.definitions import select_tools
from environments.tools.toolbox import Toolbox

from .bench import Bench


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Place(BaseModel):
    city: str
    country: str = "DE"
    near: Place | None = None


@tool
async def weather(
    place: Place,
    days: Annotated[int, Field(ge=1, le=7)] = 3,
    unit: Unit = Unit.CELSIUS,
    kind: Literal["short", "long"] = "short",
    note: str | None = None,
) -> dict[str, Any]:
    """Forecast for a place.

    With details if asked for.

    Args:
        place: where, and
            in which country
        days (int): how many days
    """
    return {"place": place, "days": days, "unit": unit, "kind": kind, "note": note}


@tool(parallel_safe=True, toolset="files")
async def size_of(path: str, state: ToolState) -> int:
    """Size of a file in bytes.

    :param path: the file
    """
    if not path:
        raise ToolInputError("path is empty; name a file")
    return len(await state.sandbox.read_bytes(path))


def test_the_schema_comes_from_types_and_docstring() -> None:
    assert weather.description == "Forecast for a place.\n\nWith details if asked for."
    parameters = weather.parameters
    assert "$defs" not in json.dumps(parameters)
    assert '"title"' not in json.dumps(parameters)
    assert parameters["required"] == ["place"]
    place = parameters["properties"]["place"]
    assert place["description"] == "where, and in which country"
    assert place["properties"]["city"] == {"type": "string"}
    assert place["properties"]["near"]["type"] == "object"
    assert parameters["properties"]["days"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 7,
        "default": 3,
        "description": "how many days",
    }
    assert parameters["properties"]["unit"]["enum"] == ["C", "F"]
    assert parameters["properties"]["note"] == {"type": "string"}
    assert list(size_of.parameters["properties"]) == ["path"]
    assert size_of.parallel_safe


def test_calls_get_typed_values_and_give_plain_results(bench: Bench) -> None:
    (bench.home / "f").write_bytes(b"12345")
    box = Toolbox([weather, size_of], bench.state)
    called = asyncio.run(box.call("weather", {"place": {"city": "Köln"}, "days": "5"}))
    assert called.error is None
    assert json.loads(called.content) == {
        "place": {"city": "Köln", "country": "DE", "near": None},
        "days": 5,
        "unit": "C",
        "kind": "short",
        "note": None,
    }
    assert json.loads(asyncio.run(box.call("size_of", {"path": str(bench.home / "f")})).content) == {
        "result": 5
    }


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("weather", {}, "place is missing"),
        ("weather", {"place": {"country": "FR"}}, "city"),
        ("weather", {"place": {"city": "A", "contry": "FR"}, "days": 9}, "at most 7"),
        ("weather", {"place": {"city": 3}, "unit": "K"}, "unit must be one of C, F"),
        ("weather", {"place": "Paris"}, "place must be"),
        ("size_of", {"path": ""}, "name a file"),
        ("size_of", {"path": "gone"}, "gone"),
        ("size_of", {"path": "x", "state": {}}, "no parameter 'state'"),
    ],
)
def test_bad_calls_tell_the_model_what_to_write(bench: Bench, name: str, arguments: Any, says: str) -> None:
    outcome = asyncio.run(Toolbox([weather, size_of], bench.state).call(name, arguments))
    assert outcome.error in ("bad_arguments", "tool_error")
    assert says in outcome.content


def test_what_cannot_be_a_tool_is_refused_where_it_is_written() -> None:
    async def untyped(x) -> int:  # type: ignore[no-untyped-def]
        """Does."""
        return 1

    async def star(*many: int) -> int:
        """Does."""
        return 1

    async def silent(x: int) -> int:
        return x

    async def strange(x: object()) -> int:  # type: ignore[valid-type]
        """Does."""
        return 1

    def plain(x: int) -> int:
        """Does."""
        return x

    for function, says in (
        (untyped, "no type"),
        (star, "cannot be a parameter"),
        (silent, "docstring"),
        (plain, "async"),
    ):
        with pytest.raises(TypeError, match=says):
            tool(function)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        tool(strange)
    with pytest.raises(TypeError, match="cannot be called"):
        tool(name="two words")(silent)


def test_brought_tools_are_there_unless_disabled() -> None:
    brought = (weather, size_of)

    def names(enabled: list[str] | None, disabled: list[str] | None = None) -> list[str]:
        return [entry.name for entry in select_tools(enabled, disabled, brought=brought).tools]

    assert names(["todo"]) == ["todo", "weather", "size_of"]
    assert names(["todo", "custom", "size_of"]) == ["todo", "weather", "size_of"]
    assert names([]) == ["weather", "size_of"]
    assert names(["todo"], ["custom"]) == ["todo", "size_of"]
    assert names(["todo"], ["files", "todo"]) == ["weather"]


def test_a_brought_tool_takes_the_place_of_a_built_in_one() -> None:
    @tool
    async def read_file(path: str) -> str:
        """Mine."""
        return path

    selected = select_tools(["read_file", "todo"], brought=[read_file]).tools
    assert [entry.description for entry in selected if entry.name == "read_file"] == ["Mine."]
    assert "read_file" not in {
        e.name for e in select_tools(["todo"], ["read_file"], brought=[read_file]).tools
    }


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError(), ZeroDivisionError()])
def test_a_tool_ends_nothing_but_its_call(bench: Bench, error: BaseException) -> None:
    @tool
    async def odd() -> None:
        """Raises."""
        raise error

    outcome = asyncio.run(Toolbox([odd], bench.state).call("odd", {}))
    assert outcome.error == "tool_error"
    assert outcome.exception is not None
    assert "odd" in outcome.content
