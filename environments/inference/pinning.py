"""Which server a conversation stays with, so that the server's prefix cache knows it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from environments.inference.pool import Slots, Split

if TYPE_CHECKING:
    from environments.inference.model_server import ModelServer
    from environments.inference.server_manager import ServerManager


class Pin:
    """Holds a conversation to the server of its first call; it moves where that one has failed."""

    def __init__(self, manager: ServerManager, split: Split) -> None:
        self._manager = manager
        self._split = split
        self._server: ModelServer | None = None
        self._release: weakref.finalize[..., Pin] | None = None

    @property
    def label(self) -> str | None:
        """Label of the server that the conversation is held to."""
        return self._server.label if self._server else None

    def server(self) -> ModelServer:
        """The server to ask, chosen at the first call."""
        if self._server is None:
            self._hold(self._manager.choose_server(self._split))
        assert self._server is not None
        return self._server

    def answered(self, label: str | None) -> None:
        """Stay with the server that answered."""
        if label != self.label and (moved := self._manager.server_labelled(label)):
            self._hold(moved)

    def release(self) -> None:
        """Let go of the server."""
        if self._release is not None:
            self._release()
        self._server = self._release = None

    def _hold(self, server: ModelServer) -> None:
        self.release()
        server.slots.sessions += 1
        # A conversation that nobody closes must not count as load for ever.
        self._release = weakref.finalize(self, _leave, server.slots)
        self._server = server


def _leave(slots: Slots) -> None:
    slots.sessions -= 1
