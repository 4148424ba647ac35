"""Recognising a family's format of tool calls in the text of its chat template.

A template writes the calls of earlier turns in the very format that the model is to write them in, so
the markers of the format stand in it.
"""

from __future__ import annotations

_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("longcat", ("<longcat_tool_call>",)),
    ("hermes", ("<tool_call>", '"name"')),
)
"""Families and what must all stand in the template, the more particular first."""


def detect_parser(chat_template: str) -> str | None:
    """The name of the parser for a model with this template, None where no known format shows."""
    return next((family for family, signs in _SIGNS if all(sign in chat_template for sign in signs)), None)
