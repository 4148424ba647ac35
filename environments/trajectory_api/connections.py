"""Connections that are opened and do not ask for anything are given up, as those that stop later are.

uvicorn knows only a limit between two requests; a client that sends half a header would keep its
connection, and a file descriptor of the server, for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol


def patient_protocol(stall: float) -> type[asyncio.Protocol]:
    """uvicorn's protocol of HTTP that closes a connection whose request is not whole after ``stall`` s."""

    class PatientProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # h11 or httptools
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is None or self.cycle.response_complete:
                self._wait()
            else:
                self._stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            """Let the time for the header of a request begin, unless it runs already."""
            if self._timer is None:
                self._timer = self.loop.call_later(stall, self._give_up)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _give_up(self) -> None:
            self._timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return PatientProtocol
