"""Background processes."""

from __future__ import annotations

import asyncio

import pytest

from environments.sandboxes.base import Process
from environments.sandboxes.local.sandbox import LocalSandbox

from .conftest import World
from .counting import count, new_duration


async def read_until(process: Process, wanted: bytes) -> bytes:
    """Read until ``wanted`` appeared."""
    seen = b""
    for _ in range(2000):
        seen += await process.read()
        if wanted in seen:
            return seen
        await asyncio.sleep(0.01)
    raise AssertionError(f"{wanted!r} is not in {seen!r}")


def test_a_conversation(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        process = await sandbox.spawn('while read line; do echo "got $line"; done; echo end >&2; exit 5')
        assert await process.wait(0.05) is None
        await process.write(b"one\n")
        assert await read_until(process, b"got one\n") == b"got one\n"
        await process.write(b"two\nthree\n")
        await process.close_stdin()
        assert await process.wait(10) == 5
        assert process.exit_code == 5
        assert await read_until(process, b"end\n") == b"got two\ngot three\nend\n"
        assert await process.read() == b""
        with pytest.raises(BrokenPipeError):
            await process.write(b"late")

    world.run(body)


def test_large_input_arrives_whole(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        process = await sandbox.spawn(["wc", "-c"])
        for _ in range(3):
            await process.write(b"x" * 3_000_000)
        await process.close_stdin()
        assert await process.wait(30) == 0
        assert (await process.read()).strip() == b"9000000"

    world.run(body)


def test_output_is_capped(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        process = await sandbox.spawn("echo first; head -c 20000000 /dev/zero; echo last")
        assert await process.wait(30) == 0
        output = await process.read()
        assert len(output) <= 1_000_000
        assert output.startswith(b"first\n")
        assert output.endswith(b"last\n")

    world.run(body)


def test_kill_takes_all_it_started(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        killed, spared = new_duration(), new_duration()
        process = await sandbox.spawn(
            f"sleep {killed} & setsid sleep {killed} & echo up; wait; sleep {killed}"
        )
        await read_until(process, b"up\n")
        other = await sandbox.spawn(f"sleep {spared}")
        while count(spared) == 0:
            await asyncio.sleep(0.01)
        await process.kill()
        assert await process.wait(10) == 137
        assert count(killed) == 0
        assert count(spared) == 1
        await sandbox.kill_all()
        assert await other.wait(10) == 137
        await other.kill()

    world.run(body)


def test_terminal(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        process = await sandbox.spawn(
            "test -t 0 && test -t 1 && echo terminal; read x; echo got $x", pty=True
        )
        await read_until(process, b"terminal\r\n")
        await process.write(b"answer\n")
        assert b"got answer\r\n" in await read_until(process, b"got answer")
        assert await process.wait(10) == 0

    world.run(body)


def test_close_ends_background_processes(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        seconds = new_duration()
        process = await sandbox.spawn(f"setsid sleep {seconds} & sleep {seconds}")
        while count(seconds) < 2:
            await asyncio.sleep(0.01)
        await sandbox.close()
        assert await process.wait(5) == 137
        assert count(seconds) == 0

    world.run(body)


def test_input_comes_in_many_small_parts(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        process = await sandbox.spawn("sleep 0.5; wc -lc")
        for _ in range(2000):
            await process.write(b"line\n")
        await process.close_stdin()
        assert await process.wait(60) == 0
        assert (await process.read()).split() == [b"2000", b"10000"]

    world.run(body)


def test_what_nobody_waited_for_any_more_comes_with_the_next_read(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        process = await sandbox.spawn("for n in $(seq 400); do echo $n; sleep 0.002; done")
        seen = b""
        pause = 0
        while process.exit_code is None:
            seen += await process.read_soon(pause / 4000)
            pause = (pause + 1) % 16
        seen += await process.read()
        assert seen == b"".join(b"%d\n" % n for n in range(1, 401))

    world.run(body)
