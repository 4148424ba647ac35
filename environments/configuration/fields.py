"""How one field of a configuration model is named, described and read from text.

Everything here follows from the field's annotation: a ``str`` field takes its text verbatim, an enum is
matched in any case, a list is JSON or comma separated. What the text cannot decide is left to pydantic,
which sees the value in any case.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

SECRET = "***"
"""Stands wherever a secret would."""

_TRUE, _FALSE = {"true", "yes", "on", "1", "t", "y"}, {"false", "no", "off", "0", "f", "n"}
_SEQUENCES = (list, tuple, set, frozenset)
_BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"), ("multiple_of", "a multiple of"))
_LENGTHS = (("min_length", "at least"), ("max_length", "at most"))


def options(annotation: Any) -> list[Any]:
    """The alternatives of an annotation: unions and ``Annotated`` are taken apart, aliases followed."""
    if hasattr(annotation, "__value__"):  # a ``type X = ...`` alias
        return options(annotation.__value__)
    origin = get_origin(annotation)
    if origin is Annotated:
        return options(get_args(annotation)[0])
    if origin is Union or origin is types.UnionType:
        return [part for arm in get_args(annotation) for part in options(arm)]
    return [annotation]


def is_secret(name: str, value: Any, field: FieldInfo | None = None) -> bool:
    """Whether the value of a field (or of a key in a mapping) must never be shown."""
    if field is not None and (not field.repr or any("Secret" in str(o) for o in options(field.annotation))):
        return True
    if value is None or isinstance(value, bool | int | float):
        return False
    return bool(hide_secrets({name: value})[name] == SECRET)


def hide_secrets(value: Any) -> Any:
    """The value as plain data, with ``***`` for what names or looks like a secret, as in results."""
    if value is None or isinstance(value, bool | int | float):
        return value
    from environments.results.fingerprint import scrub

    return scrub({"value": value})["value"]


# --- describing -------------------------------------------------------------------------------------------


def describe(annotation: Any) -> str:
    """A short name of a type: ``int``, ``list[str]``, ``one of a|b``; ``None`` is left out."""
    arms = [option for option in options(annotation) if option is not type(None)]
    choices = [str(choice) for option in arms for choice in (_choices(option) or {}).values()]
    names = [_type_name(option) for option in arms if _choices(option) is None]
    if choices:
        names.insert(0, f"one of {'|'.join(choices)}")
    return " or ".join(dict.fromkeys(names)) or "none"


def _type_name(option: Any) -> str:
    origin, arguments = get_origin(option), get_args(option)
    if option is Any or option is object:
        return "any value"
    if option is Ellipsis:
        return "..."
    if isinstance(option, type) and issubclass(option, PurePath):
        return "path"
    name = getattr(origin or option, "__name__", str(option))
    if arguments and origin is not None:
        return f"{name}[{', '.join('any' if a is Any else describe(a) for a in arguments)}]"
    return str(name)


def expectation(field: FieldInfo) -> str:
    """What a value of this field must be, in words: ``int >= 1 or none``."""
    words = [describe(field.annotation)]
    for item in field.metadata:
        words += [f"{sign} {getattr(item, a)}" for a, sign in _BOUNDS if getattr(item, a, None) is not None]
        words += [f"with {w} {getattr(item, a)} items" for a, w in _LENGTHS if getattr(item, a, None)]
        if getattr(item, "pattern", None):
            words.append(f"matching {item.pattern}")
    if len(words) > 2:
        words = [words[0], " and ".join(words[1:])]
    return " ".join(words) + (" or none" if type(None) in options(field.annotation) else "")


def is_boolean(field: FieldInfo) -> bool:
    """Whether the bare flag means true."""
    return bool in options(field.annotation)


# --- reading ----------------------------------------------------------------------------------------------


def read_text(annotation: Any, text: str) -> Any:
    """Read a value that was typed as text.

    Returns what pydantic is to validate, the text itself where it is pydantic's to read.

    Raises:
        ValueError: the text cannot be meant for this type; the message is a hint.
    """
    arms = options(annotation)
    for option in arms:
        choices = _choices(option)
        if choices and (match := _match(text, choices)) is not None:
            return match[0]
    if type(None) in arms and text.strip().lower() in ("none", "null"):
        return None
    containers = [o for o in arms if _is_sequence(o) or _is_mapping(o)]
    if containers and (str in arms or Any in arms):
        return _container_or_text(text)
    if str in arms or Any in arms:
        return text
    if bool in arms and (word := text.strip().lower()) in _TRUE | _FALSE:
        return word in _TRUE
    if containers:
        return _read_container(containers, text)
    if {int, float} & set(arms) and ("_" in text or not text.strip().isascii()):
        raise ValueError("write a number with the digits 0 to 9 and nothing between them")
    return text


def read_native(annotation: Any, value: Any, text: str | None = None, *, quoted: bool = False) -> Any:
    """Read a value that already has a type (from YAML, JSON or Python).

    ``text`` is how a scalar was written, so that ``wandb_name: 123`` gives a ``str`` field its text;
    ``quoted`` says that a string was written as a string. Raises ValueError like ``read_text``.
    """
    arms = options(annotation)
    if isinstance(value, list | tuple) and (sequence := next(filter(_is_sequence, arms), None)) is not None:
        return [read_native(_item_type(sequence), item, quoted=True) for item in value]
    if type(value) in arms and (quoted or not isinstance(value, str)):
        return value
    if type(value) is int and float in arms:
        return value
    if text is None:
        text = value if isinstance(value, str) else None
    if text is None or Any in arms or object in arms:
        return value
    return read_text(annotation, text)


def item_annotation(annotation: Any) -> Any:
    """The type of the items of a sequence field; ``Any`` where it is not one."""
    return next((_item_type(option) for option in options(annotation) if _is_sequence(option)), Any)


def value_annotation(annotation: Any) -> Callable[[str], Any]:
    """For a mapping field, from a key to the type of its value."""
    for option in options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            fields = option.model_fields
            return lambda key: fields[key].annotation if key in fields else Any
        if _is_mapping(option) and len(get_args(option)) == 2:
            value_type = get_args(option)[1]
            return lambda _key: value_type
    return lambda _key: Any


def _choices(option: Any) -> dict[Any, Any] | None:
    """For an enum or a literal: what may be passed on, and how it is written."""
    if get_origin(option) is Literal:
        return {choice: choice.value if isinstance(choice, Enum) else choice for choice in get_args(option)}
    if isinstance(option, type) and issubclass(option, Enum):
        return {member: member.value for member in option}
    return None


def _match(text: str, choices: dict[Any, Any]) -> tuple[Any] | None:
    """The choice that the text names: exactly, else in any case, else by the name of an enum member."""
    stripped = text.strip()
    written = {choice: str(value) for choice, value in choices.items()}
    named = {choice: choice.name for choice in choices if isinstance(choice, Enum)}
    for names, fold in ((written, str), (written, str.lower), (named, str.lower)):
        for choice, name in names.items():
            if fold(name) == fold(stripped):
                return (choice,)
    return None


def _is_sequence(option: Any) -> bool:
    return (get_origin(option) or option) in _SEQUENCES


def _is_mapping(option: Any) -> bool:
    kind = get_origin(option) or option
    return isinstance(kind, type) and issubclass(kind, dict | BaseModel)


def _item_type(option: Any) -> Any:
    arguments = get_args(option)
    uniform = len(arguments) == 1 or (len(arguments) == 2 and arguments[1] is Ellipsis)
    return arguments[0] if uniform else Any


def _container_or_text(text: str) -> Any:
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return _read_json(text)
        except ValueError:
            return text
    return text


def _read_container(containers: Iterable[Any], text: str) -> Any:
    stripped = text.strip()
    sequence = next(filter(_is_sequence, containers), None)
    if sequence is None or stripped.startswith("{"):
        try:
            return _read_json(stripped)
        except ValueError as error:
            raise ValueError(f"write it as JSON, such as '{{\"key\": 1}}'; {error}") from None
    if stripped.startswith("["):
        try:
            return read_native(sequence, _read_json(stripped))
        except ValueError as error:
            raise ValueError(f'write it as JSON, such as \'["a", "b"]\', or as a,b; {error}') from None
    items = [part.strip() for part in stripped.split(",")]
    return [read_text(_item_type(sequence), item) for item in items if item]


def _read_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"the key {min(twice)!r} stands there twice")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
