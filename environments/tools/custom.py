"""Tools of your own: a typed async function becomes a tool.

::

    @tool
    async def weather(city: str, days: int = 3) -> dict[str, Any]:
        \"\"\"Forecast for a city.

        city: name of the city, with its country
        \"\"\"

The schema comes from the annotations, descriptions come from the docstring. A parameter annotated
``ToolState`` is not the model's: it gets the state of the rollout, sandbox included.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from typing import Any, overload

from environments.tools.base import JSON, Tool, ToolFunction, ToolInputError, ToolState

if typing.TYPE_CHECKING:
    from pydantic import BaseModel

AnyTool = Callable[..., Awaitable[Any]]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
_PARAMETER_LINE = re.compile(r"\s*(?::param\s+)?(\w+)(?:\s*\([^)]*\))?\s*:\s+(\S.*)")
_SECTION = re.compile(r"\s*(Args|Arguments|Parameters|Returns|Raises|Yields):?\s*\Z")


@overload
def tool(function: AnyTool, /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    toolset: str = "custom",
    parallel_safe: bool = False,
) -> Callable[[AnyTool], Tool]: ...


def tool(
    function: AnyTool | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    toolset: str = "custom",
    parallel_safe: bool = False,
) -> Tool | Callable[[AnyTool], Tool]:
    """Make a ``Tool`` of an async function; a decorator with or without arguments.

    What the function returns is the result: a dict as it is, anything else under the key
    ``result``. It raises ``ToolInputError`` for what the model did wrong. ``parallel_safe`` lets calls
    of one turn run side by side. Raises ``TypeError`` where the function cannot be a tool.
    """

    def decorate(wrapped: AnyTool) -> Tool:
        return _make(wrapped, name or wrapped.__name__, description, toolset, parallel_safe)

    return decorate if function is None else decorate(function)


def _make(function: AnyTool, name: str, description: str | None, toolset: str, parallel_safe: bool) -> Tool:
    if not _NAME.match(name):
        raise TypeError(f"a tool cannot be called {name!r}: letters, digits, _ and -, at most 64")
    if not inspect.iscoroutinefunction(function):
        raise TypeError(f"tool {name!r} must be an async function")
    text, parameter_texts = _split_docstring(inspect.getdoc(function) or "")
    if not (description or text):
        raise TypeError(f"tool {name!r} needs a docstring: it is what the model reads")
    model, states = _argument_model(function, name, parameter_texts)
    return Tool(
        name=name,
        description=description or text,
        parameters=_schema(model),
        function=_adapter(function, model, states),
        toolset=toolset,
        parallel_safe=parallel_safe,
    )


def _argument_model(
    function: AnyTool, name: str, texts: dict[str, str]
) -> tuple[type[BaseModel], tuple[str, ...]]:
    """A model of what the model sends, and the parameters that get the rollout's state."""
    from pydantic import ConfigDict, Field, create_model
    from pydantic.errors import PydanticUserError

    hints = typing.get_type_hints(function, include_extras=True)
    states: list[str] = []
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {name!r}: {parameter} cannot be a parameter of a tool")
        if parameter.name not in hints:
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} has no type")
        if hints[parameter.name] is ToolState:
            states.append(parameter.name)
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        described = Field(default, description=texts.get(parameter.name))
        fields[parameter.name] = (hints[parameter.name], described)
    try:
        return create_model(name, __config__=ConfigDict(extra="forbid"), **fields), tuple(states)
    except PydanticUserError as error:
        raise TypeError(f"tool {name!r}: {error.message.splitlines()[0]}") from error


def _adapter(function: AnyTool, model: type[BaseModel], states: tuple[str, ...]) -> ToolFunction:
    async def call(state: ToolState, **arguments: Any) -> JSON:
        from pydantic import ValidationError

        try:
            values = model.model_validate(arguments)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False, include_context=False)
            problems = [f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}" for entry in details]
            raise ToolInputError("; ".join(problems)) from None
        given = {name: getattr(values, name) for name in model.model_fields}
        return _as_result(await function(**given, **dict.fromkeys(states, state)))

    return call


def _as_result(value: Any) -> JSON:
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(value)
    return plain if isinstance(plain, dict) else {"result": plain}


def _schema(model: type[BaseModel]) -> JSON:
    """The JSON schema without references and titles, as chat templates and parsers read it."""
    whole = model.model_json_schema()
    definitions = whole.pop("$defs", {})
    schema: JSON = _plain(whole, definitions, ())
    schema.pop("additionalProperties", None)
    schema.pop("description", None)
    return {"type": "object", "properties": {}, "required": [], **schema}


def _plain(value: Any, definitions: JSON, inside: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_plain(entry, definitions, inside) for entry in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        if name in inside:  # a type that contains itself ends here
            return {"type": "object"}
        referred = {**definitions[name], **{key: value[key] for key in value if key != "$ref"}}
        return _plain(referred, definitions, (*inside, name))
    plain = {
        key: {name: _plain(entry, definitions, inside) for name, entry in item.items()}
        if key == "properties"
        else _plain(item, definitions, inside)
        for key, item in value.items()
        if not (key == "title" and isinstance(item, str))
    }
    return _without_null(plain)


def _without_null(schema: JSON) -> JSON:
    """``X | None`` as X: leaving a parameter out says the same, and every chat template can show it."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if rest.get("default", ...) is None:
        del rest["default"]
    return {**kinds[0], **rest}


def _split_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The text before the parameters, and what is said of each parameter."""
    about: list[str] = []
    parameters: dict[str, str] = {}
    current: str | None = None
    began = False
    for line in text.splitlines():
        if _SECTION.match(line):
            began, current = True, None
        elif found := _PARAMETER_LINE.match(line):
            began, current = True, found[1]
            parameters[current] = found[2].strip()
        elif current is not None and line.strip():
            parameters[current] += f" {line.strip()}"
        elif not began:
            about.append(line)
        else:
            current = None
    return "\n".join(about).strip(), parameters
