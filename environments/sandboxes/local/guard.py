"""The framework's side of a guardian: starts it, gives it orders, notices its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from environments.errors import SandboxBroken, SandboxError, SandboxReleased
from environments.sandboxes.local.inside import remains, wire
from environments.sandboxes.local.nursery import GuardianProcess, Nursery
from environments.sandboxes.local.sending import Sender
from environments.sandboxes.local.shortage import building_failed
from environments.sandboxes.stops import Stops

T = TypeVar("T")

_OWN_PROCESSES = ("bubblewrap", "namespaces")
"""Isolations with a process namespace."""
_START_PATIENCE = 60.0
_ORDER_PATIENCE = 20.0
_END_PATIENCE = 20.0
_FIRST_NAP, _LONGEST_NAP = 1.0, 60.0
_MOST_STOPS = 10


class Guard:
    """One guardian process. Made by ``start``; ``close`` must be called."""

    def __init__(self, settings: dict[str, Any], lock: Callable[[], tuple[int, ...]] = tuple) -> None:
        """``lock``: descriptors that must stay open as long as the guardian lives, if it outlives us."""
        self._settings = settings
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._orders, self._their_orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.requests, self._their_requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sender = Sender(self.requests)
        self._process: GuardianProcess | None = None
        self._last_words = os.memfd_create("stderr", os.MFD_CLOEXEC)
        self._ready: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self.listener: socket.socket | None = None
        """A socket that listens inside the sandbox, if one was asked for; whoever serves it takes it."""
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._number = 0
        self._closing = False
        self._reason = ""
        self._by_the_agent = True
        """Whether the end of the init process may be something that ran in the sandbox's doing."""
        self.in_use: Callable[[], bool] = bool
        """Whether something of the agent runs, as far as we started it."""
        self.on_end: Callable[[], object] = bool
        """Called once the guardian is gone, for whatever reason."""
        self.first_number = 0
        """Where the numbers of our jobs begin: others may have jobs in the same sandbox."""
        self.ended = asyncio.Event()
        """Set when the guardian's process is gone, and with it everything of the sandbox."""

    async def start(self, nursery: Nursery) -> dict[str, Any]:
        """Start the guardian and wait for its sandbox; returns what it reports. ``SandboxError``."""
        wire.send(self._orders, self._settings | {"framework": os.getpid()})
        starting = asyncio.ensure_future(self._fork(nursery))
        try:
            self._process = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._process = await starting
            self._watch()
            raise
        self._watch()
        try:
            async with asyncio.timeout(_START_PATIENCE):
                return await self._ready
        except TimeoutError:
            raise SandboxError(f"a local sandbox did not start within {_START_PATIENCE:.0f} s") from None

    async def order(self, operation: str, descriptors: tuple[int, ...] = (), **details: Any) -> int:
        """Have the guardian do something; returns how many processes it could not kill."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[int] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            order = {"op": operation, "id": number, **details}
            wire.send(self._orders, order, descriptors=descriptors)
            async with asyncio.timeout(_ORDER_PATIENCE):
                return await answer
        except TimeoutError:
            raise SandboxError("the guardian of a local sandbox does not answer") from None
        except OSError:
            await self._wait_for_end(1.0)
            raise self.failure() from None
        finally:
            self._waiting.pop(number, None)

    async def awake(self, job: int, answer: asyncio.Future[T]) -> T:
        """An answer that a process of ours inside is to give, however long it takes.

        What runs beside that process may stop it. It is looked at now and then, and told to go on.
        ``SandboxBroken`` where it was found stopped each time.
        """
        stops = Stops(_FIRST_NAP, _LONGEST_NAP, _MOST_STOPS)
        while not (await asyncio.wait({answer}, timeout=stops.nap))[0]:
            stopped = 0
            with contextlib.suppress(SandboxError):  # where the sandbox has ended, so has the waiting
                stopped = await self.order("wake", job=job)
            stops.looked(bool(stopped))
        return answer.result()

    def tell(self, operation: str, **details: Any) -> None:
        """Ask for something that need not be waited for, and may be left undone where it is gone."""
        with contextlib.suppress(OSError):
            wire.send(self._orders, {"op": operation, "id": 0, **details})

    def failure(self) -> SandboxError:
        """Why the sandbox can no longer be used."""
        if self._closing:
            return SandboxReleased("the sandbox was released")
        if self._reason == "init" and not self._by_the_agent:
            return SandboxError("the sandbox's init process was killed while nothing ran in it")
        if self._reason == "init":
            return SandboxBroken("the sandbox's init process was killed")
        if self._reason == "lifetime":
            return SandboxError("the sandbox's lifetime is over")
        return SandboxError(f"the guardian of a local sandbox died: {self._read_last_words() or 'killed'}")

    async def wait_for_failure(self) -> SandboxError:
        """``failure`` after giving the guardian a moment to say what happened."""
        await self._wait_for_end(3.0)
        if not self.ended.is_set() and not self._closing and not self._reason:
            return SandboxBroken("the sandbox no longer answers")
        return self.failure()

    async def close(self) -> None:
        """End the sandbox and everything in it. Idempotent; safe to cancel, the end comes anyway."""
        self._closing = True
        if self.listener is not None:
            self.listener.close()
        if self._process is None:  # it was never started
            self._forget()
            return
        self._shut(self._orders)
        self._shut(self.requests)
        await self._wait_for_end(_END_PATIENCE)
        if not self.ended.is_set():
            self._process.kill()
            await self._wait_for_end(_END_PATIENCE)
            await asyncio.to_thread(remains.remove, self._settings["directory"], 2.0)

    async def keep(self, seconds: float) -> None:
        """Have the guardian go on without us for so long, holding its run's lock."""
        await self.order("keep", self._lock(), seconds=seconds)

    def let_go(self) -> None:
        """Leave the guardian alone: it goes on, and tells us nothing any more."""
        self._closing = True
        self._loop.remove_reader(self._orders)
        if self._process is not None:
            self._loop.remove_reader(self._process.descriptor)
            self._process.close()
        self._forget()

    async def _fork(self, nursery: Nursery) -> GuardianProcess:
        theirs = (self._their_orders, self._their_requests)
        try:
            orders, requests = (end.fileno() for end in theirs)
            return await nursery.fork((orders, requests, self.requests.fileno(), self._last_words))
        finally:
            for end in theirs:
                end.close()

    def _watch(self) -> None:
        assert self._process is not None
        self._orders.setblocking(False)
        self.requests.setblocking(False)
        self._loop.add_reader(self._orders, self._read)
        self._loop.add_reader(self._process.descriptor, self._end)

    def _read(self) -> None:
        try:
            message = wire.receive(self._orders)
        except BlockingIOError:
            return
        except (OSError, wire.ProtocolError):
            message = None
        if message is None:
            self._hung_up()
            return
        header = message.header
        if "ready" in header and len(message.descriptors) == 1:
            self.listener = socket.socket(fileno=message.descriptors.pop())
        wire.close_all(message.descriptors)
        if "ended" in header:
            self._reason = header["ended"]
            # The kernel lets nothing inside a process namespace kill its first process, but for memory.
            shielded = self._settings.get("rung") in _OWN_PROCESSES and not header.get("memory_kills")
            self._by_the_agent = not shielded or self.in_use()
        elif "done" in header:
            self._settle(self._waiting.get(header["done"]), header["left"])
        elif "ready" in header and not self._ready.done():
            self._ready.set_result(header)
        elif "error" in header and not self._ready.done():
            self._ready.set_exception(building_failed(header["error"], header.get("errno")))

    def _hung_up(self) -> None:
        self._loop.remove_reader(self._orders)

    def _end(self) -> None:
        assert self._process is not None
        self._loop.remove_reader(self._process.descriptor)
        self._process.close()
        while self._orders.fileno() >= 0 and self._has_more():
            self._read()
        self._loop.remove_reader(self._orders)
        self.ended.set()
        if not self._ready.done():
            words = self._read_last_words()
            self._ready.set_exception(
                SandboxError(f"a local sandbox cannot be started: {words or 'it was killed'}")
            )
        if not self._ready.cancelled():
            self._ready.exception()  # nobody may be waiting any more
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self.failure())
        self._forget()
        self.on_end()

    def _forget(self) -> None:
        """Close what is ours of it."""
        self._orders.close()
        self.sender.stop()
        self.requests.close()
        if self._last_words >= 0:
            os.close(self._last_words)
            self._last_words = -1
        self.ended.set()

    def _has_more(self) -> bool:
        try:
            return bool(self._orders.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False

    def _settle(self, future: asyncio.Future[int] | None, value: int) -> None:
        if future is not None and not future.done():
            future.set_result(value)

    def _shut(self, sock: socket.socket) -> None:
        try:
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # gone already
            return

    async def _wait_for_end(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self.ended.wait()
        except TimeoutError:
            return

    def _read_last_words(self) -> str:
        if self._last_words < 0:
            return ""
        text = wire.read_whole(self._last_words, 4000).decode("utf-8", "replace").strip()
        return text.splitlines()[-1] if text else ""
