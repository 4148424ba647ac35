"""Waiting for a program of ours that what runs beside it may stop, or that may be stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from environments.errors import SandboxError
from environments.sandboxes.remote_shell.machine import Channel, Exit, Machine, Receiver
from environments.sandboxes.remote_shell.output import WholeOutput
from environments.sandboxes.stops import Stops

T = TypeVar("T")

_FIRST_NAP, _LONGEST_NAP = 0.5, 10.0
_MOST_STOPS = 10
LONGEST_SILENCE = 300.0
"""Seconds after which a program is given up that takes and gives nothing, however large its task is."""


async def until_silent(channel: Channel, output: WholeOutput, patience: float) -> Exit:
    """The end of a program that prints to ``output``.

    ``TimeoutError`` where it has printed nothing for ``patience`` seconds, told after twice that at most.
    """
    waiting = asyncio.ensure_future(channel.wait())
    try:
        printed = -1
        while not (await asyncio.wait({waiting}, timeout=patience))[0]:
            before, printed = printed, output.received
            if printed in (before, 0):
                raise TimeoutError
        return waiting.result()
    finally:
        waiting.cancel()


class Attention:
    """Attends to one program: has it go on where it was stopped, and gives it up where nothing moves."""

    def __init__(self, machine: Machine, receive: Receiver, *, patience: float = LONGEST_SILENCE) -> None:
        """``receive`` gets the program's output; ``patience`` is the longest silence in seconds."""
        self._machine = machine
        self._receive = receive
        self._patience = patience
        self._stops = Stops(_FIRST_NAP, _LONGEST_NAP, _MOST_STOPS)
        self._moved = 0

    def receive(self, stream: int, data: bytes) -> None:
        """Take output of stream 1 or 2, and pass it on."""
        self._moved += len(data)
        self._receive(stream, data)

    def sent(self, count: int) -> None:
        """Note that so many bytes of input were taken."""
        self._moved += count

    async def until(self, channel: Channel, waited: Coroutine[Any, Any, T]) -> T:
        """The result of ``waited``, for which the program of ``channel`` has to do something.

        ``SandboxBroken`` where the program was found stopped each time that it was looked at, and
        ``SandboxError`` where nothing moved for too long.
        """
        waiting = asyncio.ensure_future(waited)
        silence, moved = 0.0, self._moved
        self._stops.begin()
        try:
            while not (await asyncio.wait({waiting}, timeout=self._stops.nap))[0]:
                silence = silence + self._stops.nap if self._moved == moved else 0.0
                moved = self._moved
                self._stops.looked(self._machine.wake(channel))
                if silence >= self._patience:
                    raise SandboxError(f"nothing has moved in the sandbox for {silence:.0f} s")
            return waiting.result()
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})
            if not waiting.cancelled():
                waiting.exception()  # where somebody else's error ends the waiting, nobody asks for this one
