"""The offered tools, and the types that their schemas give to values written as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from environments.tool_call_parsers.json_scan import NotJSON, json_text, parse_whole, strict_text
from environments.tool_call_parsers.python_scan import NotPython, parse_literal

_JSON_TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_ALIASES = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "list": "array",
    "dict": "object",
}
_REFERENCES = 16  # a chain of $ref longer than this is a circle


class ToolSchemas:
    """Parameter schemas by tool name. Without tools every name is known and no type is."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None) -> None:
        self._parameters: dict[str, Mapping[str, Any]] | None = None
        if tools:
            functions = [_mapping(tool.get("function", tool)) for tool in tools if isinstance(tool, Mapping)]
            self._parameters = {
                function["name"]: _mapping(function.get("parameters"))
                for function in functions
                if isinstance(function.get("name"), str)
            }

    def __bool__(self) -> bool:
        return self._parameters is not None

    def knows(self, name: str) -> bool:
        """Whether a tool of that name is offered, or no tools were given."""
        return self._parameters is None or name in self._parameters

    def properties(self, name: str) -> Mapping[str, Any] | None:
        """The parameters of a tool by name; None where nothing is known about it."""
        if self._parameters is None or name not in self._parameters:
            return None
        properties = self._parameters[name].get("properties")
        return properties if isinstance(properties, Mapping) else None

    def fits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Whether a tool of that name is offered and takes just these arguments, whatever their types."""
        if self._parameters is None or name not in self._parameters:
            return False
        required = self._parameters[name].get("required")
        known = self.properties(name) or {}
        needed = required if isinstance(required, list) else []
        return all(key in arguments for key in needed) and all(key in known for key in arguments)

    def value(
        self, tool: str, parameter: str, text: str, *, is_string: bool | None = None
    ) -> tuple[Any, str]:
        """The value that ``text`` stands for, and its JSON text.

        Where the schema allows a string, the text is the value, byte for byte (``null`` is null if the
        schema says so too). Otherwise it is JSON; ``True``, ``False``, ``None`` and Python's lists and
        mappings count as well, since chat templates write them. What fits neither stays a string.
        ``is_string`` is what the format itself says of the value: it decides where the schema does not.
        """
        properties = self.properties(tool) or {}
        return self.value_of(tool, properties.get(parameter), text, is_string=is_string)

    def value_of(
        self, tool: str, schema: Any, text: str, *, is_string: bool | None = None
    ) -> tuple[Any, str]:
        """The same for a value whose ``schema`` is known: one inside a parameter of ``tool``."""
        types = self.types_of(tool, schema)
        if is_string and (not types or "string" in types):
            return text, json_text(text)
        if is_string is False and types != {"string"}:
            types -= {"string"}
        if "string" in types and not ("null" in types and text.strip() in ("null", "None")):
            return text, json_text(text)
        return _untyped_value(text, types)

    def types_of(self, tool: str, schema: Any) -> frozenset[str]:
        """The JSON types that ``schema``, a part of the parameters of ``tool``, allows; empty where it says
        nothing."""
        root = (self._parameters or {}).get(tool, {})
        return frozenset(_types_of(schema, root, _REFERENCES))


def _untyped_value(text: str, types: frozenset[str]) -> tuple[Any, str]:
    body = text.strip()
    try:
        value = parse_whole(body)
    except NotJSON:
        pass
    else:
        return value, strict_text(body, value)
    # Where a type is known the text is no string, so a Python literal of that type can only be a value.
    if types or body in ("True", "False", "None"):
        try:
            value = parse_literal(body)
        except NotPython:
            pass
        else:
            if not isinstance(value, list | dict) or _type_of_value(value) in types:
                return value, json_text(value)
    return text, json_text(text)


def _types_of(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    """All JSON types that ``schema`` allows, empty where it says nothing."""
    if not isinstance(schema, Mapping) or depth == 0:
        return set()
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    types = {_type_name(name) for name in names if isinstance(name, str)} - {""}
    if types:
        return types | ({"null"} if schema.get("nullable") is True else set())
    for options in (schema.get("anyOf"), schema.get("oneOf"), schema.get("allOf")):
        for option in options if isinstance(options, list) else []:
            types |= _types_of(option, root, depth - 1)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        types |= _types_of(_resolve(root, reference), root, depth - 1)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        types |= {_type_of_value(value) for value in values}
    return types


def _type_name(name: str) -> str:
    lowered = name.strip().lower()
    return lowered if lowered in _JSON_TYPES else _ALIASES.get(lowered, "")


def _type_of_value(value: Any) -> str:
    kinds: list[tuple[type, str]] = [
        (str, "string"),
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (list, "array"),
        (dict, "object"),
    ]
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def _resolve(root: Mapping[str, Any], reference: str) -> Any:
    found: Any = root
    for part in reference[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
