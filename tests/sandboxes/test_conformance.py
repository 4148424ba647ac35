"""What the protocol promises, one thing per case, on every backend."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from environments.errors import SandboxReleased
from environments.sandboxes.base import Sandbox, SandboxSpec

from .conftest import World
from .counting import count, new_duration


@pytest.fixture
def world(strongest_world: World) -> World:
    """One isolation suffices for every change; tests/integration/sandboxes runs this on all of them."""
    return strongest_world


@pytest.mark.parametrize("code", [0, 1, 2, 42, 124, 125, 126, 127, 255])
def test_exit_codes(world: World, code: int) -> None:
    async def body(sandbox: Sandbox) -> None:
        for command in (f"exit {code}", ["sh", "-c", f"exit {code}"]):
            result = await sandbox.exec(command)
            assert (result.exit_code, result.timed_out, result.killed_by) == (code, False, None)

    world.run(body)


@pytest.mark.parametrize("signal", [1, 2, 3, 6, 9, 10, 11, 15])
def test_signals(world: World, signal: int) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(["sh", "-c", f"kill -{signal} $$; sleep 10"])
        assert (result.exit_code, result.timed_out, result.killed_by) == (128 + signal, False, signal)

    world.run(body)


@pytest.mark.parametrize(
    "data", [b"", b"x", b"no end of line", bytes(range(256)), b"\0" * 70_000, b"line\n" * 400_000]
)
def test_input_arrives_whole(world: World, data: bytes) -> None:
    async def body(sandbox: Sandbox) -> None:
        echoed = await sandbox.exec("cat; echo >&2 end", stdin=data, output_limit=len(data) + 10)
        assert (echoed.stdout, echoed.stderr) == (data, b"end\n")
        ignored = await sandbox.exec("exit 3", stdin=data)
        assert ignored.exit_code == 3

    world.run(body)


@pytest.mark.parametrize("merge", [False, True])
def test_output_of_any_bytes(world: World, merge: bool) -> None:
    async def body(sandbox: Sandbox) -> None:
        command = r"printf '\0\377\n\r\033[31m'; printf 'problem\0' >&2; printf last"
        result = await sandbox.exec(command, merge_output=merge)
        out, err = b"\0\xff\n\r\x1b[31m", b"problem\0"
        assert (result.stdout, result.stderr) == (
            (out + err + b"last", b"") if merge else (out + b"last", err)
        )

    world.run(body)


@pytest.mark.parametrize("limit", [0, 1, 10, 99, 100, 101])
def test_output_limits(world: World, limit: int) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec("printf '%0100d' 7", output_limit=limit)
        assert result.stdout_bytes == 100
        assert len(result.stdout) == min(limit, 100)
        assert limit == 0 or result.stdout.endswith(b"7")

    world.run(body)


@pytest.mark.parametrize(
    "name",
    [
        "with space",
        "new\nline",
        "ünïcode-日本",
        "-dash",
        "\udcff-not-utf8",
        "quote'\"",
        "$(touch x)`y`",
        "x" * 255,
    ],
)
def test_names_of_files(world: World, name: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        await sandbox.write_bytes(f"~/place/{name}", b"content")
        assert (await sandbox.exec(["cat", "--", name], cwd="~/place")).stdout == b"content"
        assert [info.path.rpartition("/place/")[2] for info in await sandbox.list("~/place")] == [name]
        assert (await sandbox.stat(f"~/place/{name}")).size == 7
        await sandbox.exec(["mv", "--", f"./{name}", "./moved"], cwd="~/place")
        assert await sandbox.read_bytes("~/place/moved") == b"content"

    world.run(body)


@pytest.mark.parametrize(
    "value", ["", "two\nlines", "quote'\"", "$HOME `id`", "ünïcode", "a=b", "trailing \\", "x" * 10_000]
)
def test_values_of_variables(world: World, value: str) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec('printf %s "$GIVEN|$OWN"', env={"OWN": value})
        assert result.text == f"{value}|{value}"

    world.run(body, SandboxSpec(environment={"GIVEN": value}))


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o444])
def test_modes(world: World, mode: int) -> None:
    async def body(sandbox: Sandbox) -> None:
        await sandbox.write_bytes("file", b"1", mode=mode)
        assert (await sandbox.stat("file")).mode == mode

    world.run(body)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 0), (0, 5), (5, 5), (95, 10), (100, 1), (200, None), (99, None)]
)
def test_parts_of_files(world: World, offset: int, length: int | None) -> None:
    async def body(sandbox: Sandbox) -> None:
        data = bytes(range(100))
        await sandbox.write_bytes("file", data)
        end = None if length is None else offset + length
        assert await sandbox.read_bytes("file", offset=offset, length=length) == data[offset:end]

    world.run(body)


@pytest.mark.parametrize("way", ["plain", "setsid", "double fork", "ignores signals", "background and gone"])
def test_no_way_to_detach_outlives_a_time_out(world: World, way: str) -> None:
    seconds = new_duration()
    command = {
        "plain": "sleep S",
        "setsid": "setsid sleep S & sleep S",
        "double fork": "(setsid sh -c '(sleep S &) ; sleep S' &) ; sleep S",
        "ignores signals": "trap '' TERM HUP INT QUIT; sleep S; sleep S",
        "background and gone": "nohup setsid sh -c 'sleep S & exec sleep S' >/dev/null & disown; sleep S",
    }[way].replace("S", str(seconds))

    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec(command, timeout=1.5)
        assert (result.exit_code, result.timed_out) == (124, True)
        assert count(seconds) == 0
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    world.run(body)


@pytest.mark.parametrize("after", [0.0, 0.02, 0.2, 1.0])
def test_cancelled_commands_leave_nothing(world: World, after: float) -> None:
    seconds = new_duration()

    async def body(sandbox: Sandbox) -> None:
        running = asyncio.ensure_future(sandbox.exec(f"setsid sleep {seconds} & sleep {seconds}"))
        await asyncio.sleep(after)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        for _ in range(50):  # what was just about to start may first have to begin
            if count(seconds) == 0:
                break
            await asyncio.sleep(0.1)
        assert count(seconds) == 0
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    world.run(body)


def test_a_program_that_closes_its_streams_is_waited_for(world: World) -> None:
    async def body(sandbox: Sandbox) -> None:
        result = await sandbox.exec("exec >&- 2>&- <&-; sleep 1; exit 5")
        assert result.exit_code == 5
        assert result.duration >= 0.9

    world.run(body)


def test_large_input_and_output_cross(world: World) -> None:
    async def body(sandbox: Sandbox) -> None:
        data = hashlib.sha256(b"seed").digest() * 100_000
        result = await sandbox.exec("tee /dev/stderr", stdin=data, output_limit=len(data))
        assert result.stdout == data
        assert result.stderr == data

    world.run(body)


def test_sandboxes_of_one_backend_are_apart(world: World) -> None:
    async def main() -> None:
        async with world.backend() as backend:
            spec = world.spec(SandboxSpec())
            one, two = await asyncio.gather(backend.create(spec), backend.create(spec))
            assert one.id != two.id
            await one.write_bytes("~/mine", b"1")
            await one.write_bytes(f"{one.scratch}/mine", b"1")
            with pytest.raises(FileNotFoundError):
                await two.read_bytes("~/mine")
            await two.close()
            assert await one.read_bytes("~/mine") == b"1"
            with pytest.raises(SandboxReleased):
                await two.stat("~")

    asyncio.run(asyncio.wait_for(main(), 100))
