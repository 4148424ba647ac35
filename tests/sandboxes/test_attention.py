"""Waiting for programs that are stopped by what runs beside them, or that are stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from environments.errors import SandboxBroken, SandboxError
from environments.sandboxes.remote_shell import attention
from environments.sandboxes.remote_shell.attention import Attention, until_silent
from environments.sandboxes.remote_shell.machine import Channel, Exit, Machine, Receiver
from environments.sandboxes.remote_shell.output import WholeOutput


class Stopping(Machine):
    """Finds its programs stopped as often as it is told to."""

    def __init__(self, stops: int = 0, on_wake: Callable[[int], object] = bool) -> None:
        self.stops = stops
        self.looks = 0
        self.on_wake = on_wake

    def wake(self, channel: Channel) -> bool:
        self.looks += 1
        self.on_wake(self.looks)
        return self.looks <= self.stops

    async def open(self, program: bytes, receive: Receiver, *, pty: bool = False) -> Channel:
        raise NotImplementedError

    async def kill(self, mark: str) -> None: ...

    async def alive(self) -> bool:
        return True

    async def release(self) -> None: ...


class Program(Channel):
    """Ends when it is told to."""

    async def write(self, data: bytes) -> None: ...

    def close_stdin(self) -> None: ...

    async def wait(self) -> None:  # type: ignore[override]
        await asyncio.sleep(1000)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def short_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_FIRST_NAP", 0.01)
    monkeypatch.setattr(attention, "_LONGEST_NAP", 0.02)


def wait(machine: Machine, ended: asyncio.Event | None = None, patience: float = 60.0) -> str:
    async def end() -> str:
        await (ended.wait() if ended is not None else asyncio.sleep(1000))
        return "ended"

    async def main() -> str:
        async with asyncio.timeout(30):
            return await Attention(machine, lambda *_: None, patience=patience).until(Program(), end())

    return asyncio.run(main())


def test_what_was_stopped_goes_on() -> None:
    ended = asyncio.Event()
    machine = Stopping(9, lambda looks: ended.set() if looks == 9 else None)
    assert wait(machine, ended) == "ended"


def test_what_is_stopped_again_and_again_was_broken() -> None:
    machine = Stopping(1000)
    with pytest.raises(SandboxBroken, match="again and again"):
        wait(machine)
    assert machine.looks == 10


def test_one_look_that_finds_it_running_begins_anew() -> None:
    ended = asyncio.Event()
    machine = Stopping(0, lambda looks: ended.set() if looks == 40 else None)
    machine.wake = lambda channel: Stopping.wake(machine, channel) or machine.looks % 9 > 0  # type: ignore[method-assign]
    assert wait(machine, ended) == "ended"


def test_silence_is_given_up_but_progress_is_not() -> None:
    with pytest.raises(SandboxError, match="nothing has moved") as caught:
        wait(Stopping(), patience=0.1)
    assert not isinstance(caught.value, SandboxBroken)

    async def main() -> tuple[str, bytes]:
        received: list[bytes] = []
        attending = Attention(Stopping(), lambda _, data: received.append(data), patience=0.5)

        async def progress() -> str:
            for _ in range(20):
                await asyncio.sleep(0.05)
                attending.receive(1, b"x")
                await asyncio.sleep(0.05)
                attending.sent(1)
            return "ended"

        return await attending.until(Program(), progress()), b"".join(received)

    assert asyncio.run(main()) == ("ended", b"x" * 20)


def test_what_was_waited_for_is_cancelled_with_the_waiting() -> None:
    async def main() -> bool:
        ended = asyncio.Event()

        async def forever() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                ended.set()

        waiting = asyncio.ensure_future(Attention(Stopping(), lambda *_: None).until(Program(), forever()))
        await asyncio.sleep(0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return ended.is_set()

    assert asyncio.run(main())


def test_what_prints_is_waited_for_and_what_is_silent_is_not() -> None:
    class Printing(Program):
        async def wait(self) -> Exit:
            for _ in range(20):
                await asyncio.sleep(0.05)
                output.receive(1, b".")
            return Exit(7)

    output = WholeOutput()
    assert asyncio.run(until_silent(Printing(), output, 0.3)).code == 7
    assert output.stdout == b"." * 20
    for printed in (b"", b"some"):
        silent = WholeOutput()
        silent.receive(1, printed)
        with pytest.raises(TimeoutError):
            asyncio.run(until_silent(Program(), silent, 0.1))
