"""What one command leaves to the next: a supervisor that takes another one, and nothing else."""

from __future__ import annotations

import asyncio
import time

import pytest

from environments.sandboxes import editing
from environments.sandboxes.base import Process, Resources, Sandbox, SandboxSpec
from environments.sandboxes.local.sandbox import LocalSandbox

from .conftest import World
from .counting import count, new_duration

INHERITED = (
    "ulimit -Sa; ulimit -Ha; pwd; env | sort; umask; ls /proc/self/fd 2>/dev/null; "
    "grep -E '^(Sig(Ign|Blk|Cgt)|Cap|NoNewPrivs|Seccomp)' /proc/self/status 2>/dev/null; "
    "ps -o sid=,pgid= -p $$ 2>/dev/null | awk -v me=$$ '{print $1 == me, $2 == me}'"
)


async def supervisor(sandbox: Sandbox) -> int:
    """The parent of a command."""
    return int((await sandbox.exec("echo $PPID")).text)


def test_the_next_command_has_the_same_supervisor_unless_something_is_left(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        first = await supervisor(sandbox)
        assert await supervisor(sandbox) == first
        assert (await sandbox.exec("sleep 300 & exit 3")).exit_code == 3
        second = await supervisor(sandbox)
        assert second != first
        assert (await sandbox.exec("exit 4")).exit_code == 4
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await sandbox.exec("sleep 300")
        third = await supervisor(sandbox)
        assert third not in (first, second)
        assert (await sandbox.exec("sleep 300", timeout=0.3)).timed_out
        assert await supervisor(sandbox) not in (first, second, third)

    world.run(body)


def test_every_command_begins_alike(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        first = await sandbox.exec(INHERITED)
        assert b"core" in first.stdout
        await sandbox.exec("ulimit -n 20; cd /; umask 0; exit 3", stdin=b"x" * 100_000)
        await sandbox.exec(["no-such-program"])
        again = (await sandbox.exec(INHERITED)).stdout
        # The C library's own two signals, which nobody else can use.
        assert again.replace(b"SigIgn:\t0000000180000000", b"SigIgn:\t0000000000000000") == first.stdout
        assert (await sandbox.exec("cat; test -t 0 || echo end")).text == "end\n"
        for number in range(3):
            result = await sandbox.exec(["sh", "-c", "cat; exit 7"], stdin=b"%d" % number)
            assert (result.stdout, result.exit_code) == (b"%d" % number, 7)

    world.run(body)


def test_errors_of_a_supervisor_in_use_are_those_of_a_new_one(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        commands = [["no-such"], ["/"], ["a\0b"], ["./none"], ["/usr/bin/true/x"], ["x" * 5000]]
        await sandbox.exec("printf '#!/nowhere\\n' > script; printf x > plain; chmod 755 script")
        commands += [["./script"], ["./plain"], ["x" * 200_000]]
        for command in commands:
            await sandbox.exec("sleep 300 &")
            new = await sandbox.exec(command)
            assert (await sandbox.exec("true")).exit_code == 0
            again = await sandbox.exec(command)
            assert (again.exit_code, again.stdout, again.stderr) == (new.exit_code, b"", new.stderr)
        merged = await sandbox.exec(["no-such"], merge_output=True)
        assert b"no-such" in merged.stdout
        assert (await sandbox.exec("true", cwd="/nowhere")).exit_code == 127

    world.run(body)


def test_a_supervisor_that_was_stopped_while_idle_takes_the_next_command(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        idle = await supervisor(sandbox)
        stopper = await sandbox.spawn(f"kill -STOP {idle}")
        assert await stopper.wait(10) == 0
        assert (await sandbox.exec("sleep 0.1; echo woken", timeout=30)).text == "woken\n"

    world.run(body)


def test_a_supervisor_that_was_killed_while_idle_is_replaced(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        idle = await supervisor(sandbox)
        killer = await sandbox.spawn(f"kill -KILL {idle}; while kill -0 {idle}; do sleep 0.01; done")
        assert await killer.wait(10) == 0
        assert await supervisor(sandbox) != idle
        idle = await supervisor(sandbox)
        await sandbox.kill_all()
        assert await supervisor(sandbox) != idle

    world.run(body)


def test_a_command_starts_in_a_sandbox_that_is_full_of_processes(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        seconds = new_duration()
        await sandbox.spawn(f"for i in $(seq 200); do sleep {seconds} & done; wait; sleep {seconds}")
        for _ in range(300):
            if count(seconds) >= 10:
                break
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)
        for _ in range(3):
            assert (await sandbox.exec(["/usr/bin/true"], timeout=30)).exit_code == 0
        assert count(seconds) <= 60
        await sandbox.kill_all()

    if world.rung in ("namespaces", "bubblewrap"):
        world.run(body, SandboxSpec(resources=Resources(processes=25)))


def test_a_command_of_a_supervisor_in_use_has_the_limit_of_commands(rooted_world: World) -> None:
    """The supervisor may have more processes than a command; a command must not get at that."""

    async def body(sandbox: LocalSandbox) -> None:
        raising = "ulimit -u 1000 2>/dev/null; ulimit -Hu; ulimit -Su"
        for _ in range(3):
            assert (await sandbox.exec(raising)).text == "25\n25\n"

    rooted_world.run(body, SandboxSpec(resources=Resources(processes=25)))


def test_output_is_waited_for(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        process = await sandbox.spawn("read x; echo got $x; read x; echo got $x; sleep 0.3; exit 5")
        assert await process.read_soon(0.05) == b""
        waiting = asyncio.ensure_future(process.read_soon(60))
        await asyncio.sleep(0.05)
        await process.write(b"one\n")
        assert await waiting == b"got one\n"
        assert await process.read() == b""
        cancelled = asyncio.ensure_future(process.read_soon(60))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await process.write(b"two\n")
        started = time.monotonic()
        assert await process.read_soon(60) == b"got two\n"
        assert await process.read_soon(60) == b""
        assert time.monotonic() - started < 30
        assert await process.wait(30) == 5
        assert await process.read_soon(60) == b""
        plain = await sandbox.spawn("sleep 0.2; echo x")
        assert await Process.read_soon(plain, 60) == b"x\n"
        assert await Process.read_soon(plain, 60) == b""

    world.run(body)


def test_files_are_loaded_and_saved_through_links(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(
            "mkdir d; echo one > d/f; chmod 640 d/f; ln -s d/f link; ln -s d dir; ln -s no dangling"
        )
        here = sandbox.working_directory
        for load in (sandbox.load, lambda path, limit: editing.load(sandbox, path, limit)):
            for path, where in (("link", "d/f"), ("d/f", "d/f"), ("dir/f", "dir/f")):
                loaded = await load(f"{here}/{path}", 3)
                assert (loaded.path, loaded.mode) == (f"{here}/{where}", 0o640)
                assert (loaded.data, loaded.size) == (b"one", 4)
            for path, error in (("d", IsADirectoryError), ("dir", IsADirectoryError)):
                with pytest.raises(error):
                    await load(f"{here}/{path}", 10)
            for path in ("none", "dangling", "none/x"):
                with pytest.raises(FileNotFoundError):
                    await load(f"{here}/{path}", 10)
        for number, save in enumerate((sandbox.save, lambda path, data: editing.save(sandbox, path, data))):
            saved = await save(f"{here}/link", b"two")
            assert (saved.path, saved.made_directories) == (f"{here}/d/f", False)
            assert (await sandbox.stat("link")).kind == "link"
            assert (await sandbox.stat("d/f")).mode == 0o640
            assert await sandbox.read_bytes("d/f") == b"two"
            saved = await save(f"{here}/new{number}/deep/file", b"x" * 100_000)
            assert (saved.path, saved.made_directories) == (f"{here}/new{number}/deep/file", True)
            with pytest.raises(IsADirectoryError):
                await save(f"{here}/dir", b"")

    world.run(body)


def test_odd_paths_do_no_harm(world: World) -> None:
    """The first process handles them itself."""

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec("ln -s 0 0; for i in $(seq 2000); do ln -s $((i - 1)) $i; done; mkfifo pipe")
        paths = [
            "2000",
            "0",
            "0/x",
            "x" * 300,
            "y/" * 2000,
            "pipe",
            "/dev/ptmx",
            "/proc/self/mem",
            "\udcff\n",
        ]
        for path in paths:
            for use in (sandbox.stat, sandbox.read_bytes, lambda p: sandbox.load(p, 10)):
                try:
                    await use(path)
                except OSError:
                    continue
            try:
                await sandbox.save(path, b"x")
            except OSError:
                continue
        assert (await sandbox.exec("echo alive")).text == "alive\n"
        await sandbox.write_bytes("after", b"1")

    world.run(body)
