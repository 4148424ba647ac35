"""What servers of the tests have in common: a port on this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod

from aiohttp import web


class LocalServer(ABC):
    """Listens on a free port; started again, on the one of before."""

    port = 0
    cancels_handlers = False
    """Whether a client that hangs up cancels what answers it."""
    _runner: web.AppRunner | None = None

    @property
    def host(self) -> str:
        """Address and port."""
        return f"127.0.0.1:{self.port}"

    @abstractmethod
    def application(self) -> web.Application:
        """What answers."""

    async def start(self) -> None:
        """Listen."""
        self._runner = web.AppRunner(
            self.application(), shutdown_timeout=0.1, handler_cancellation=self.cancels_handlers
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
