"""What the backends share whose sandboxes a provider runs and finds again by their labels."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from environments.errors import ConfigError, NotSupported, SandboxError
from environments.sandboxes.base import Backend, SandboxEntry, SandboxSpec
from environments.sandboxes.hosted import ownership
from environments.sandboxes.hosted.creation import Creation
from environments.sandboxes.remote_shell.program import new_family
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

logger = logging.getLogger(__name__)

Service = TypeVar("Service")
Labels = Mapping[str, str]


class HostedBackend(Backend, Generic[Service]):
    """Logs in once, makes sandboxes within bounds, and ends what nobody holds any more.

    A subclass says how its provider's SDK does these things. The SDK's errors are foreign code's: any
    may come, and ``_text_of`` makes a line of one.
    """

    provider: str
    """How the provider is called in messages."""

    def __init__(self, config: HermesAgentEnvConfig, run_id: str) -> None:
        self._config = config
        self._run_id = run_id
        self._creation = Creation(config.sandbox_creation_concurrency)
        self._connecting = asyncio.Lock()
        self._service: Service | None = None
        self._live: set[RemoteSandbox] = set()
        self._reaped = False
        self._closed = False

    # -- what a provider's backend does ---------------------------------------------------------

    @abstractmethod
    async def _log_in(self) -> Service:
        """What all calls go through. ``ConfigError`` with the cure, or ``SandboxError``."""

    async def _log_out(self, service: Service) -> None:
        """Let go of it."""

    @abstractmethod
    async def _make(self, service: Service, spec: SandboxSpec, labels: dict[str, str]) -> RemoteSandbox:
        """Ask for one sandbox. ``TryAgain`` where it may be had later."""

    @abstractmethod
    async def _join(self, service: Service, entry: SandboxEntry) -> RemoteSandbox:
        """A sandbox that is there already. Raises errors of the SDK."""

    @abstractmethod
    def _find(self, service: Service, labels: Labels) -> AsyncIterator[tuple[SandboxEntry, Any]]:
        """The sandboxes that bear these labels, with the SDK's objects for them. Raises its errors."""

    @abstractmethod
    async def _end(self, service: Service, entry: SandboxEntry, found: Any) -> None:
        """End a sandbox; none is fine. ``found`` is the SDK's object, if it is at hand. Raises its errors."""

    @abstractmethod
    def _text_of(self, error: BaseException) -> str:
        """One line on an error of the SDK."""

    # -- the protocol ---------------------------------------------------------------------------

    async def check(self) -> None:
        """Log in. ``ConfigError`` with the cure where that cannot work."""
        try:
            await self._connected()
        except SandboxError as error:
            raise ConfigError(str(error)) from error

    async def create(self, spec: SandboxSpec) -> RemoteSandbox:
        """Make one sandbox. ``NotSupported`` where ``spec`` asks for what the provider lacks."""
        if spec.resources.gpus:
            raise NotSupported(f"the {self.name} backend gives no GPU to a sandbox")
        service = await self._connected()
        sandbox_id = f"{ownership.clean(self._run_id)[:40]}-{new_family()}"
        labels = ownership.labels_for(self._run_id, sandbox_id, spec.lifetime)

        async def make() -> RemoteSandbox:
            if self._closed:
                raise SandboxError("the backend is closed")
            sandbox = await self._make(service, spec, labels)
            self._live.add(sandbox)
            return sandbox

        async def discard() -> None:
            await self._end_all(service, {ownership.SANDBOX: sandbox_id})

        return await self._creation.run(make, discard)

    async def close(self) -> None:
        """Release all that the run still holds, whatever became of the requests for it."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._live)))
        if self._service is not None:
            await self._end_all(self._service, ownership.labels_of_process(self._run_id))
            await self._log_out(self._service)

    async def survey(self) -> list[SandboxEntry]:
        """Every sandbox of ours that this account can see."""
        service = await self._logged_in()
        try:
            entries = [entry async for entry, _ in self._find(service, {})]
        except Exception as error:  # a provider's SDK may raise anything
            raise SandboxError(
                f"{self.provider} does not list its sandboxes: {self._text_of(error)}"
            ) from error
        return [entry for entry in entries if entry.run]

    async def remove(self, entries: Sequence[SandboxEntry]) -> list[SandboxEntry]:
        """End sandboxes of any run; those that are left."""
        service = await self._logged_in()
        ended = await asyncio.gather(*(self._try_to_end(service, entry) for entry in entries))
        return [entry for entry, gone in zip(entries, ended, strict=True) if not gone]

    async def reap(self) -> list[SandboxEntry]:
        """End what dead runs of this machine left; for those of others nobody here can tell."""
        service = await self._logged_in()
        return await self._end_all(service, {ownership.WORLD: ownership.this_world()}, abandoned=True)

    async def attach(self, entry: SandboxEntry) -> RemoteSandbox:
        """Join a sandbox that another process made."""
        service = await self._logged_in()
        try:
            return await self._join(service, entry)
        except SandboxError:
            raise
        except Exception as error:  # a provider's SDK may raise anything
            raise SandboxError(
                f"the {self.provider} sandbox {entry.id} cannot be joined: {self._text_of(error)}"
            ) from error

    # -- parts ----------------------------------------------------------------------------------

    async def _logged_in(self) -> Service:
        async with self._connecting:
            if self._service is None:
                self._service = await self._log_in()
            return self._service

    async def _connected(self) -> Service:
        """Log in, and end what dead runs of this machine left. Once."""
        service = await self._logged_in()
        async with self._connecting:
            if not self._reaped:
                await self._end_all(service, {ownership.WORLD: ownership.this_world()}, abandoned=True)
                self._reaped = True
        return service

    async def _try_to_end(self, service: Service, entry: SandboxEntry) -> bool:
        try:
            await self._end(service, entry, None)
        except Exception as error:  # noqa: BLE001 - the caller is told which are left
            text = self._text_of(error)
            logger.warning("the %s sandbox %s cannot be ended: %s", self.provider, entry.id, text)
            return False
        return True

    async def _end_all(
        self, service: Service, labels: Labels, *, abandoned: bool = False
    ) -> list[SandboxEntry]:
        """End the sandboxes that bear these labels; with ``abandoned`` only those that nobody may want,
        else all that were not kept.

        It is called on the way out and at the start, where a failure must not hide or stop anything: what
        it leaves ends with its own lifetime.
        """
        ended: list[SandboxEntry] = []
        try:
            async for entry, found in self._find(service, labels):
                if entry.abandoned if abandoned else not entry.kept:
                    logger.info("ending the %s sandbox %s, held by nobody", self.provider, entry.id)
                    await self._end(service, entry, found)
                    ended.append(entry)
        except Exception as error:  # noqa: BLE001 - lifetimes end what is left
            text = self._text_of(error)
            logger.warning("sandboxes may be left on %s until their lifetimes end: %s", self.provider, text)
        return ended
