"""Sandboxes that another process made: finding them, joining one, ending them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import time
from pathlib import Path
from typing import Any

from environments.errors import SandboxError
from environments.records import SandboxInfo
from environments.sandboxes.base import SandboxEntry
from environments.sandboxes.local import run_directory
from environments.sandboxes.local.guard import Guard
from environments.sandboxes.local.inside import wire
from environments.sandboxes.local.inside.visitors import DOOR
from environments.sandboxes.local.sandbox import LocalSandbox
from environments.sandboxes.local.sending import Sender

_PATIENCE = 10.0
_RUN_SUFFIX = re.compile(r"-[a-z0-9_]{8}\Z")


class VisitingGuard(Guard):
    """A guardian that another process started: its end is the end of the connection."""

    def __init__(self, door: socket.socket, requests: int) -> None:
        super().__init__({})
        self.first_number = random.randrange(1 << 20, 1 << 30)
        for end in (self._orders, self._their_orders, self.requests, self._their_requests):
            end.close()
        self._orders = door
        self.requests = socket.socket(fileno=requests)
        self._orders.setblocking(False)
        self.requests.setblocking(False)
        self.sender = Sender(self.requests)
        self._loop.add_reader(self._orders, self._read)

    async def close(self) -> None:
        """End the sandbox and everything in it."""
        self._closing = True
        with contextlib.suppress(SandboxError):  # it has ended meanwhile
            await self.order("end")
        await self._wait_for_end(_PATIENCE)

    async def _wait_for_end(self, patience: float) -> None:
        try:
            async with asyncio.timeout(patience):
                await self.ended.wait()
        except TimeoutError:
            return

    def _hung_up(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self.failure())
        self.let_go()
        self.on_end()


def find() -> list[SandboxEntry]:
    """All sandboxes of this user on this machine. Blocking."""
    return [entry for path, alive in run_directory.sandbox_directories() if (entry := _look(path, alive))]


def end(entry: SandboxEntry) -> bool:
    """End a sandbox and wait until nothing of it is left. Blocking. False where that takes too long."""
    directory = Path(entry.handle)
    with contextlib.suppress(OSError), _door(directory) as door:
        wire.send(door, {"op": "end", "id": 1})
        while door.recv(1 << 16):
            continue
    deadline = time.monotonic() + _PATIENCE
    while directory.exists():
        run_directory.reap()  # the guardian was dead, and so is its run
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


async def join(entry: SandboxEntry) -> LocalSandbox:
    """A sandbox made by another process, to be used from here too. ``SandboxError`` where it is gone."""
    try:
        door, message = await asyncio.to_thread(_ask, Path(entry.handle))
    except (OSError, wire.ProtocolError) as error:
        raise SandboxError(f"the sandbox {entry.id} does not answer: {error}") from error
    guard = VisitingGuard(door, message.descriptors.pop())
    report = message.header
    info = SandboxInfo("local", report["rung"], "public" if report["network"] else "none", entry.id)
    return LocalSandbox(guard, info, report)


def _look(directory: Path, run_alive: bool) -> SandboxEntry | None:
    run = directory.parent.name.removeprefix(".dead-")
    name = f"hermes-{run}-{directory.name}"
    run = _RUN_SUFFIX.sub("", run)
    try:
        door, message = _ask(directory)
    except (OSError, wire.ProtocolError):
        if run_alive:  # it is being made or taken down
            return None
        made = directory.stat().st_mtime if directory.exists() else None
        return SandboxEntry("local", name, run, owner_alive=False, created_at=made, handle=str(directory))
    door.close()
    wire.close_all(message.descriptors)
    found: dict[str, Any] = message.header
    return SandboxEntry(
        backend="local",
        id=name,
        run=run,
        owner=f"process {found['framework']}",
        owner_alive=not found["kept"] or _lives(found["framework"]),
        created_at=found["created"],
        deadline=found["deadline"],
        kept=found["kept"],
        handle=str(directory),
    )


def _lives(process: int) -> bool:
    try:
        os.close(os.pidfd_open(process))
    except OSError:
        return False
    return True


def _ask(directory: Path) -> tuple[socket.socket, wire.Message]:
    """Go through a sandbox's door: the connection, and what the guardian says of it."""
    door = _door(directory)
    try:
        wire.send(door, {"op": "join", "id": 0})
        message = wire.receive(door)
        if message is None:
            raise wire.ProtocolError("it has just ended")
    except BaseException:  # cancelled, too: nothing half-made stays
        door.close()
        raise
    return door, message


def _door(directory: Path) -> socket.socket:
    """Connect by way of a descriptor: the path may be too long for a socket's name."""
    place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.settimeout(_PATIENCE)
    try:
        door.connect(f"/proc/self/fd/{place}/{DOOR}")
    except BaseException:  # cancelled, too: nothing half-made stays
        door.close()
        raise
    finally:
        os.close(place)
    return door
