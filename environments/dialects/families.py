"""What single model families need beyond their chat template: stop tokens and forms of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Family:
    """A model family. ``stop_texts`` are stop tokens that its configuration may not name,
    ``never_stops`` end a part of the turn only."""

    name: str = "generic"
    stop_texts: tuple[str, ...] = ()
    never_stops: tuple[str, ...] = ()

    def prepare(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages as this family's template takes them."""
        return messages
