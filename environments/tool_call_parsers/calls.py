"""A tool call, whoever found it: the server, or a parser in the model's text."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Function:
    """Name and raw argument text of a call; ``arguments`` is what the model wrote, parsed or not."""

    name: str
    arguments: Any = "{}"


@dataclass(slots=True)
class ToolCall:
    """One tool call as the server sent it, or as a parser read it from text."""

    id: str
    function: Function
    type: str = "function"
    extra: dict[str, Any] = field(default_factory=dict)
    """Provider fields of the call that must go back verbatim, such as a signature."""


def new_call_id() -> str:
    """An id for a call that came without one."""
    return f"call_{secrets.token_hex(12)}"
