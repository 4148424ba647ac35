"""From what a model wrote as arguments to what a tool's function takes.

Models send objects, JSON text, JSON text inside JSON text, ``null``, nothing, or something broken.
``parse_arguments`` makes a dict of it, ``validate`` checks it against the tool's schema. Both raise
``ToolInputError`` and nothing else; its text tells the model what to write instead. Conversions
lose nothing ("5" for an integer); where a guess would be needed it is an error.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

from environments.tools.base import JSON, Tool, ToolInputError

_EXCERPT = 40
_KEYS_OF_OTHERS = frozenset(("$ref", "allOf", "anyOf", "oneOf", "patternProperties"))
"""With these a schema of somebody else's tool may allow more parameters than it lists."""

_INTEGER = re.compile(r"[+-]?\d{1,18}\Z", re.ASCII)


def parse_arguments(raw: Any) -> dict[str, Any]:
    """The arguments as a dict. None, an empty text and ``"null"`` mean that there are none."""
    value = raw
    # Twice: some models, and some servers, encode the text of the object a second time.
    for _ in range(2):
        if not isinstance(value, str):
            break
        value = _load(value) if value.strip() else None
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise ToolInputError(f'arguments must be a JSON object such as {{"name": "value"}}, not {_kind(value)}')


def validate(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Checked and converted arguments, defaults filled in. All problems are reported at once."""
    problems: list[str] = []
    values = _object(arguments, tool.parameters, "", problems)
    if problems:
        raise ToolInputError(f"{'; '.join(problems)}. Parameters of {tool.name}: {signature(tool)}")
    return values


def signature(tool: Tool) -> str:
    """The tool's parameters in one line, optional ones marked with ``?``."""
    required = tool.parameters.get("required", ())
    properties = tool.parameters.get("properties", {})
    parts = []
    for name, schema in properties.items():
        kind = _kind_of(schema) if isinstance(schema, dict) else "any"
        parts.append(f"{name}{'' if name in required else '?'}: {kind}")
    return ", ".join(parts) or "none"


def _kind_of(schema: JSON) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    kind = schema.get("type", "any")
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def _load(text: str) -> Any:
    try:
        # strict=False: a raw line break inside a string has only one reading.
        return json.loads(text, strict=False, parse_constant=_reject_constant, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        start = max(0, error.pos - _EXCERPT)
        excerpt = text[start : error.pos + _EXCERPT]
        raise ToolInputError(
            f"arguments are not valid JSON: {error.msg} at character {error.pos} of {len(text)}, "
            f"near {excerpt!r}. Write one JSON object, with quotes and backslashes in strings escaped"
        ) from None
    except RecursionError:
        raise ToolInputError("arguments are nested too deeply to be read") from None
    except ValueError as error:
        raise ToolInputError(f"arguments are not valid JSON: {error}") from None


def _each_once(members: list[tuple[str, Any]]) -> JSON:
    found = dict(members)
    if len(found) < len(members):
        raise ValueError(f"{_repeated(members)[:80]!r} is given twice")
    return found


def _repeated(members: list[tuple[str, Any]]) -> str:
    counts = Counter(name for name, _ in members)
    return next(name for name in counts if counts[name] > 1)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _object(value: dict[str, Any], schema: JSON, where: str, problems: list[str]) -> dict[str, Any]:
    properties: JSON = schema.get("properties", {})
    values: dict[str, Any] = {}
    for name, item in value.items():
        if name in properties:
            # null for an optional parameter is how many models say "not given".
            if item is None and (name not in schema.get("required", ()) or _has_default(properties[name])):
                continue
            values[name] = _value(item, properties[name], f"{where}{name}", problems)
        elif where or schema.get("additionalProperties") or not _KEYS_OF_OTHERS.isdisjoint(schema):
            values[name] = item
        else:
            problems.append(_unknown(str(name), list(properties)))
    for name in schema.get("required", ()):
        if name not in value and not _has_default(properties.get(name)):
            problems.append(f"{where}{name} is missing")
    for name, item in properties.items():
        if _has_default(item):
            values.setdefault(name, item["default"])
    return values


def _has_default(schema: Any) -> bool:
    return isinstance(schema, dict) and "default" in schema


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name.casefold(), known, n=2, cutoff=0.5)
    return f"there is no parameter {name[:80]!r}" + (f" (did you mean {' or '.join(near)}?)" if near else "")


def _value(value: Any, schema: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(schema, dict):  # true: anything goes
        return value
    kind = schema.get("type")
    if isinstance(kind, list):  # one of several, which the tool tells apart by itself
        kind = None
    try:
        converted = _CONVERTERS[kind](value) if kind in _CONVERTERS else value
    except ToolInputError as error:
        problems.append(f"{where} must be {error}, not {_kind(value)}")
        return value
    if "enum" in schema:
        return _choice(converted, schema["enum"], where, problems)
    if kind in ("integer", "number"):
        _check_bounds(converted, schema, where, problems)
    elif kind == "string" and not _is_unicode(converted):
        problems.append(f"{where} has a lone surrogate in it, which is no character")
    elif kind == "array":
        return _array(converted, schema, where, problems)
    elif kind == "object":
        return _object(converted, schema, f"{where}.", problems)
    return converted


def _choice(value: Any, choices: list[Any], where: str, problems: list[str]) -> Any:
    for choice in choices:
        if value == choice or str(value).strip().casefold() == str(choice).casefold():
            return choice
    problems.append(f"{where} must be one of {', '.join(map(str, choices))}, not {_kind(value)}")
    return value


def _check_bounds(value: float, schema: JSON, where: str, problems: list[str]) -> None:
    if "minimum" in schema and value < schema["minimum"]:
        problems.append(f"{where} must be at least {schema['minimum']}, not {value}")
    if "maximum" in schema and value > schema["maximum"]:
        problems.append(f"{where} must be at most {schema['maximum']}, not {value}")


def _array(items: list[Any], schema: JSON, where: str, problems: list[str]) -> list[Any]:
    if len(items) > schema.get("maxItems", math.inf):
        problems.append(f"{where} may have at most {schema['maxItems']} entries, not {len(items)}")
    if "items" not in schema:
        return items
    return [_value(item, schema["items"], f"{where}[{index}]", problems) for index, item in enumerate(items)]


def _integer(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 2**63:  # no program that a tool hands it to could take it
            raise ToolInputError("an integer of at most 18 digits")
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, str) and _INTEGER.match(value.strip()):
        return int(value)
    raise ToolInputError("an integer")


def _number(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise ToolInputError("a finite number")
        return value
    if isinstance(value, str):
        try:
            parsed = json.loads(value, parse_constant=_reject_constant)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, int | float) and not isinstance(parsed, bool):
            return _number(parsed)
    raise ToolInputError("a number")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().casefold() in ("true", "false"):
        return value.strip().casefold() == "true"
    raise ToolInputError("true or false")


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return json.dumps(value, allow_nan=False)
        except ValueError:  # not finite, or too many digits for Python to print
            pass
    raise ToolInputError("a string")


def _list(value: Any) -> list[Any]:
    found = _decoded(value)
    if isinstance(found, list):
        return found
    raise ToolInputError("an array")


def _mapping(value: Any) -> dict[str, Any]:
    found = _decoded(value)
    if isinstance(found, dict):
        return found
    raise ToolInputError("an object")


def _decoded(value: Any) -> Any:
    """The value of JSON text, for a place where only arrays or objects can stand."""
    if not isinstance(value, str):
        return value
    try:
        return _load(value)
    except ToolInputError:
        return value


_CONVERTERS: dict[Any, Any] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "string": _string,
    "array": _list,
    "object": _mapping,
}


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    """A value for an error text: its JSON type, and the value itself where it is short."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        name = "the number"
    elif isinstance(value, str):
        name = "the text"
    elif isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    elif isinstance(value, dict):
        return "an object"
    else:
        return f"a {type(value).__name__}"
    try:
        shown = repr(value)
    except ValueError:  # an integer with too many digits for Python to print
        return name
    return f"{name} {shown if len(shown) <= 2 * _EXCERPT else shown[: 2 * _EXCERPT] + '...'}"
