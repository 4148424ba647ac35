"""A conversation over HTTP, pinned to one server so that its prefix cache is used."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from environments.inference.pool import Slots, Split
from environments.inference.session import Session
from environments.inference.types import ChatCompletion
from environments.records import Message

if TYPE_CHECKING:
    from environments.inference.model_server import ModelServer
    from environments.inference.server_manager import ServerManager


class HTTPSession(Session):
    """Asks the server of the conversation's first call again, unless it fails or wants no calls."""

    wire = "chat"
    phase = 1

    def __init__(self, manager: ServerManager, split: Split) -> None:
        self._manager = manager
        self._split = split
        self._server: ModelServer | None = None
        self._unpin: weakref.finalize[..., HTTPSession] | None = None
        self.model = manager.model

    @property
    def server(self) -> str | None:
        """Label of the server that the conversation is pinned to."""
        return self._server.label if self._server else None

    async def chat_completion(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None = None, **sampling: Any
    ) -> ChatCompletion:
        """One reply to the conversation so far. Raises ``ModelError``."""
        if self._server is None:
            self._pin(self._manager.choose_server(self._split))
        reply = await self._manager.chat_completion(
            messages, tools, split=self._split, server=self._server, **sampling
        )
        if reply.server != self.server and (moved := self._manager.server_labelled(reply.server)):
            self._pin(moved)
        return reply

    async def close(self) -> None:
        """Let go of the server."""
        if self._unpin is not None:
            self._unpin()
        self._server = self._unpin = None

    def _pin(self, server: ModelServer) -> None:
        if self._unpin is not None:
            self._unpin()
        server.slots.sessions += 1
        # A session that nobody closes must not count as load for ever.
        self._unpin = weakref.finalize(self, _release, server.slots)
        self._server = server


def _release(slots: Slots) -> None:
    slots.sessions -= 1
