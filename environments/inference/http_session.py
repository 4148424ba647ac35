"""A conversation over HTTP, pinned to one server so that its prefix cache is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.inference.pinning import Pin
from environments.inference.pool import Split
from environments.inference.session import Session
from environments.inference.types import ChatCompletion
from environments.records import Message

if TYPE_CHECKING:
    from environments.inference.server_manager import ServerManager


class HTTPSession(Session):
    """Asks the server of the conversation's first call again, unless it fails or wants no calls."""

    wire = "chat"
    phase = 1

    def __init__(self, manager: ServerManager, split: Split) -> None:
        self._manager = manager
        self._split = split
        self._pin = Pin(manager, split)
        self.model = manager.model
        self.context_length = manager.context_length
        self.prices = manager.prices

    @property
    def server(self) -> str | None:
        """Label of the server that the conversation is pinned to."""
        return self._pin.label

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> ChatCompletion:
        """One reply to the conversation so far. Raises ``ModelError``."""
        reply = await self._manager.chat_completion(
            messages, tools, split=self._split, server=self._pin.server(), **sampling
        )
        self._pin.answered(reply.server)
        return reply

    async def close(self) -> None:
        """Let go of the server."""
        self._pin.release()
