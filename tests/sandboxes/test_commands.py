"""Running commands: results, output, input, time-outs, cancellation."""

from __future__ import annotations

import asyncio
import time

import pytest

from environments.errors import NotSupported, SandboxReleased
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.local.sandbox import LocalSandbox

from .conftest import World
from .counting import count, new_duration


def runaways(seconds: int) -> str:
    """Children that try to get away: a new session, a double fork, and one that ignores signals."""
    return (
        "sleep S & setsid sleep S & (setsid bash -c 'sleep S & sleep S & wait' &) ;"
        " nohup bash -c 'trap \"\" TERM HUP INT; sleep S; sleep S' >/dev/null 2>&1 & echo begun; sleep S"
    ).replace("S", str(seconds))


def test_results_of_commands(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert (result.stdout_bytes, result.stderr_bytes, result.timed_out) == (4, 4, False)
        merged = await sandbox.exec("echo 1; echo 2 >&2; echo 3", merge_output=True)
        assert (merged.stdout, merged.stderr) == (b"1\n2\n3\n", b"")
        killed = await sandbox.exec("kill -SEGV $$")
        assert (killed.exit_code, killed.killed_by) == (139, 11)
        arguments = await sandbox.exec(["printf", "%s|", "a b", "$HOME", "", "ü\n"])
        assert arguments.stdout == "a b|$HOME||ü\n|".encode()
        missing = await sandbox.exec(["no-such-program"])
        assert missing.exit_code == 127
        assert b"no-such-program" in missing.stderr
        assert (await sandbox.exec(["/"])).exit_code == 126
        assert (await sandbox.exec("echo \0")).exit_code == 126
        assert (await sandbox.exec("true", cwd="/nowhere")).exit_code == 127

    world.run(body)


def test_directory_environment_and_input(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        assert (await sandbox.exec("pwd")).text == sandbox.working_directory + "\n"
        assert sandbox.working_directory == f"{sandbox.home}/work/dir"
        assert (await sandbox.exec("pwd", cwd="~")).text == sandbox.home + "\n"
        assert (await sandbox.exec("pwd", cwd="..")).text == f"{sandbox.home}/work\n"
        env = await sandbox.exec('echo "$A-$B-$HOME"', env={"B": "two\nlines"})
        assert env.text == f"one-two\nlines-{sandbox.home}\n"
        assert (await sandbox.exec("cat; test -t 0 || echo end")).text == "end\n"
        data = bytes(range(256)) * 5000
        assert (await sandbox.exec("sha256sum", stdin=data)).stdout == (
            await sandbox.exec(["sha256sum", "-"], stdin=data)
        ).stdout
        echoed = await sandbox.exec(["cat"], stdin=data, output_limit=len(data))
        assert echoed.stdout == data
        assert (await sandbox.exec(f": {'x' * 500_000}; echo long")).text == "long\n"

    spec = SandboxSpec(environment={"A": "one"}, working_directory="~/work/dir")
    world.run(body, spec)


def test_output_is_capped_in_the_middle(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec("seq 1 1000000; echo problem >&2", output_limit=1000)
        assert result.stdout_bytes == 6888896
        assert len(result.stdout) == 1000
        assert result.stdout.startswith(b"1\n2\n")
        assert result.stdout.endswith(b"999999\n1000000\n")
        assert result.stderr == b"problem\n"
        flood = await sandbox.exec("head -c 200000000 /dev/zero")
        assert (len(flood.stdout), flood.stdout_bytes) == (1_000_000, 200_000_000)

    world.run(body)


def test_time_out_kills_everything_the_command_started(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        seconds = new_duration()
        result = await sandbox.exec(runaways(seconds), timeout=1)
        assert (result.exit_code, result.timed_out, result.killed_by) == (124, True, None)
        assert result.stdout == b"begun\n"
        assert count(seconds) == 0
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    world.run(body)


def test_cancellation_kills_everything_the_command_started(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        seconds = new_duration()
        running = asyncio.ensure_future(sandbox.exec(runaways(seconds)))
        while count(seconds) < 6:
            await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert count(seconds) == 0
        for attempt in range(20):  # cancelled before, while and after it starts
            running = asyncio.ensure_future(sandbox.exec(f"sleep {seconds}"))
            await asyncio.sleep(0.0007 * attempt)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert count(seconds) == 0

    world.run(body)


def test_detached_children_survive_a_normal_end_until_kill_all(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        started = time.monotonic()
        seconds = new_duration()
        result = await sandbox.exec(f"sleep {seconds} & setsid sleep {seconds} & echo done")
        assert result.text == "done\n"
        assert time.monotonic() - started < 60  # it did not wait for the pipe that they hold open
        while count(seconds) < 2:  # setsid may still be on its way
            await asyncio.sleep(0.01)
        await sandbox.kill_all()
        assert count(seconds) == 0
        assert await sandbox.alive()
        assert (await sandbox.exec("echo again")).text == "again\n"

    world.run(body)


def test_a_background_writer_is_not_killed_by_the_end_of_its_command(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(
            "(for i in $(seq 50); do echo noise || exit; sleep 0.01; done; echo ok > ~/end) & sleep 0.05"
        )
        for _ in range(200):
            await asyncio.sleep(0.05)
            if (await sandbox.exec("cat ~/end")).text == "ok\n":
                return
        raise AssertionError("the writer died")

    world.run(body)


def test_many_commands_side_by_side(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        results = await asyncio.gather(*(sandbox.exec(f"echo {n}; exit {n}") for n in range(40)))
        assert [(r.text, r.exit_code) for r in results] == [(f"{n}\n", n) for n in range(40)]

    world.run(body)


def test_another_user_is_refused(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        with pytest.raises(NotSupported):
            await sandbox.exec("true", user="root")

    world.run(body)


def test_use_after_release(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        pending = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await asyncio.sleep(0.2)
        await asyncio.gather(sandbox.close(), sandbox.close())
        await sandbox.close()
        with pytest.raises(SandboxReleased):
            await pending
        for use in (sandbox.exec("true"), sandbox.read_bytes("x"), sandbox.spawn("true"), sandbox.kill_all()):
            with pytest.raises(SandboxReleased):
                await use
        assert not await sandbox.alive()

    world.run(body)


def test_many_long_commands_at_once(world: World) -> None:
    """More than fits into a socket: each waits for its turn."""

    async def body(sandbox: LocalSandbox) -> None:
        for length, number in ((20_000, 16), (45_000, 24)):
            commands = [f"echo {n} #{'x' * length}" for n in range(number)]
            results = await asyncio.gather(*(sandbox.exec(command) for command in commands))
            assert [result.text for result in results] == [f"{n}\n" for n in range(number)]
        waiting = [asyncio.ensure_future(sandbox.exec(command)) for command in commands]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        kept = await asyncio.gather(*waiting[1::2])
        assert [result.text for result in kept] == [f"{n}\n" for n in range(1, number, 2)]

    world.run(body)
