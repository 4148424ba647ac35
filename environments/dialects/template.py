"""Rendering a chat template as the field does it: Jinja in a sandbox, with its usual helpers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from environments.dialects.marks import EDGE, INNER, PLACE, without_marks
from environments.errors import BadRequest, ConfigError

_ESCAPED = {json.dumps(mark)[1:-1]: mark for mark in (INNER, EDGE, PLACE)}


class TemplateRefusal(BadRequest):
    """The chat template raised an error for this conversation."""


class ChatTemplate:
    """One chat template. ``variables`` are what it knows beside messages and tools: ``bos_token`` and
    the like."""

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        from jinja2 import TemplateError

        self.source = source
        self._variables = dict(variables)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ConfigError(f"the chat template is no valid Jinja: {error}") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generation: bool,
        options: Mapping[str, Any],
        now: datetime,
    ) -> str:
        """The conversation as text. Raises ``TemplateRefusal``."""
        from jinja2 import TemplateError

        try:
            text: str = self._template.render(
                {
                    **self._variables,
                    "documents": None,
                    **options,
                    "messages": messages,
                    "tools": tools,
                    "add_generation_prompt": generation,
                    "strftime_now": now.strftime,
                }
            )
            return text
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            # A template is foreign code: what it raises is its answer to this conversation.
            said = without_marks(str(error))
            raise TemplateRefusal(f"the chat template refuses the conversation: {said}") from None


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import SandboxedEnvironment

    class GenerationTag(Extension):
        """``{% generation %}``, which marks assistant text for training, renders its body."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if ensure_ascii:
        for escaped, mark in _ESCAPED.items():
            text = text.replace(escaped, mark)
    return text


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
