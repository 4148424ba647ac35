"""What the methods of a sandbox do with arguments that are wrong or odd, on every backend."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from environments.sandboxes.arguments import LARGEST_READ, LONGEST_ARGUMENT, check_timeout
from environments.sandboxes.base import Sandbox, SandboxSpec

from .conftest import World

Call = Callable[[Sandbox], Coroutine[Any, Any, Any]]

HALF = "\ud83d"
"""Half of a surrogate pair, which models write; no byte stands for it."""

MISTAKES: list[tuple[type[Exception], str, Call]] = [
    (ValueError, "program", lambda s: s.exec([])),
    (ValueError, "program", lambda s: s.spawn(())),
    (TypeError, "bytes", lambda s: s.exec(b"true")),
    (TypeError, "None", lambda s: s.exec(None)),
    (TypeError, "int", lambda s: s.exec(["echo", 1])),
    (TypeError, "bytes", lambda s: s.spawn(["echo", b"x"])),
    (TypeError, "mapping", lambda s: s.exec("true", env=["A=b"])),
    (TypeError, "'A' has int", lambda s: s.exec("true", env={"A": 1})),
    (TypeError, "int", lambda s: s.spawn("true", env={1: "A"})),
    (ValueError, "''", lambda s: s.exec("true", env={"": "b"})),
    (ValueError, "'A=B'", lambda s: s.exec("true", env={"A=B": "c"})),
    (ValueError, "NUL", lambda s: s.exec("true", env={"A\0": "b"})),
    (ValueError, "'A' has a NUL", lambda s: s.spawn("true", env={"A": "b\0c"})),
    (ValueError, "U[+]D83D", lambda s: s.exec("true", env={"A": HALF})),
    (ValueError, "U[+]D83D", lambda s: s.exec("true", env={HALF: "A"})),
    (ValueError, "NaN", lambda s: s.exec("true", timeout=math.nan)),
    (TypeError, "str", lambda s: s.exec("true", timeout="5")),
    (ValueError, "-1", lambda s: s.exec("true", output_limit=-1)),
    (TypeError, "float", lambda s: s.exec("true", output_limit=1e6)),
    (TypeError, "input is bytes, not str", lambda s: s.exec("cat", stdin="text")),
    (TypeError, "int", lambda s: s.exec("true", cwd=1)),
    (ValueError, "user", lambda s: s.exec("true", user="")),
    (ValueError, "user", lambda s: s.exec("true", user="a\0b")),
    (TypeError, "int", lambda s: s.exec("true", user=0)),
    (TypeError, "path.*int", lambda s: s.read_bytes(1)),
    (TypeError, "path.*bytes", lambda s: s.write_bytes(b"file", b"")),
    (TypeError, "not str", lambda s: s.write_bytes("file", "text")),
    (ValueError, "mode", lambda s: s.write_bytes("file", b"", mode=-1)),
    (ValueError, "mode", lambda s: s.write_bytes("file", b"", mode=0o100644)),
    (TypeError, "mode", lambda s: s.write_bytes("file", b"", mode="644")),
    (ValueError, "offset.*-1", lambda s: s.read_bytes("file", offset=-1)),
    (ValueError, "length.*-5", lambda s: s.read_bytes("file", length=-5)),
    (TypeError, "length.*float", lambda s: s.read_bytes("file", length=5.0)),
]


def test_mistakes_of_the_caller_are_told_before_anything_is_sent(world: World) -> None:
    async def body(sandbox: Sandbox) -> None:
        before = {info.path for info in await sandbox.list(".")}
        for kind, words, call in MISTAKES:
            with pytest.raises(kind, match=words) as caught:
                await call(sandbox)
            assert type(caught.value) is kind
        assert {info.path for info in await sandbox.list(".")} == before
        assert (await sandbox.exec("echo fine")).text == "fine\n"

    world.run(body)


async def _nothing() -> Any:
    """A tar stream without a byte."""
    return
    yield b""


@pytest.mark.parametrize("variables", [{"": "a"}, {"A=B": "c"}, {"A": "b\0"}, {"A": HALF}])
def test_variables_of_a_whole_sandbox(variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="variable"):
        SandboxSpec(environment=variables)


def test_paths_that_no_file_can_have(world: World) -> None:
    async def download(sandbox: Sandbox, path: str) -> None:
        async for _ in sandbox.download_tar(path):
            pass

    async def body(sandbox: Sandbox) -> None:
        for path, number in (("", errno.ENOENT), ("a\0b", errno.EINVAL), (f"a{HALF}", errno.EILSEQ)):
            for operation in (
                sandbox.read_bytes(path),
                sandbox.load(path, 10),
                sandbox.write_bytes(path, b"x"),
                sandbox.save(path, b"x"),
                sandbox.stat(path),
                sandbox.list(path),
                sandbox.upload_tar(_nothing(), path),
                download(sandbox, path),
            ):
                with pytest.raises(OSError) as caught:
                    await operation
                assert caught.value.errno == number
        assert (await sandbox.save("new", b"x")).made_directories is False

    world.run(body)


def test_what_no_system_can_start_has_ended(world: World) -> None:
    words = ["x" * 100_000] * 30
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ("echo a\0b", {}, "NUL"),
        (["echo", "a\0b"], {}, "argument 1 has a NUL"),
        (f"echo {HALF}", {}, "U+D83D"),
        (["echo", HALF], {}, "U+D83D"),
        (["echo", "x" * 200_000], {}, "200000 bytes"),
        (["echo", *words], {}, "in all"),
        ("true", {"env": {"LONG": "x" * 200_000}}, "LONG"),
        ("true", {"env": {f"N{n}": word for n, word in enumerate(words)}}, "in all"),
        ("true", {"cwd": "a\0b"}, "directory"),
        ("true", {"cwd": f"/{HALF}"}, "directory"),
    ]

    async def body(sandbox: Sandbox) -> None:
        for command, details, reason in cases:
            result = await sandbox.exec(command, **details)
            assert (result.exit_code, result.stdout, result.timed_out) == (126, b"", False)
            message = result.stderr.decode()
            assert message.startswith("cannot run the command: ")
            assert reason in message
            assert message.endswith("\n")
            assert len(message) < 300
            process = await sandbox.spawn(command, **details)
            assert await process.wait(10) == process.exit_code == 126
            assert (await process.read_soon(1)).decode() == message
            await process.close_stdin()
            with pytest.raises(BrokenPipeError):
                await process.write(b"x")
            await process.kill()
        merged = await sandbox.exec("\0", merge_output=True, output_limit=6)
        assert (merged.stdout, merged.stderr) == (b"cannot", b"")
        assert merged.stdout_bytes > 6

    world.run(body)


def test_long_arguments_that_a_system_takes(world: World) -> None:
    async def body(sandbox: Sandbox) -> None:
        one = "x" * LONGEST_ARGUMENT
        result = await sandbox.exec(["sh", "-c", 'echo "$# ${#1}"', "sh", one])
        assert result.text == f"1 {LONGEST_ARGUMENT}\n"
        count = await sandbox.exec(["sh", "-c", "echo $#", "sh", *["y" * 100_000] * 15])
        assert count.text == "15\n"
        named = await sandbox.exec("echo ${#LONG}", env={"LONG": "z" * 120_000})
        assert named.text == "120000\n"
        for length in (140_000, 3_000_000):
            shell = await sandbox.exec("#" + "x" * length + "\necho read")
            assert shell.text == "read\n"
        process = await sandbox.spawn(["sh", "-c", 'echo "${#1}"', "sh", one])
        assert await process.wait(20) == 0
        assert (await process.read_soon(2)).split() == [str(LONGEST_ARGUMENT).encode()]

    world.run(body)


def test_odd_arguments_that_work(world: World) -> None:
    async def body(sandbox: Sandbox) -> None:
        for empty in ("", " ", "# nothing"):
            result = await sandbox.exec(empty)
            assert (result.exit_code, result.stdout, result.stderr) == (0, b"", b"")
        assert (await sandbox.exec([""])).exit_code in (126, 127)
        assert (await sandbox.exec("pwd", cwd="")).text.strip() == sandbox.working_directory
        assert (await sandbox.exec(("printf", "%s", "a", ""))).text == "a"
        odd = await sandbox.exec(["printf", "%s|%s", "\udcff\udc80", "\n'\""])
        assert odd.stdout == b"\xff\x80|\n'\""
        assert (await sandbox.exec("printf %s '\udcff'")).stdout == b"\xff"
        kept = await sandbox.exec('printf %s "$ODD"', env={"ODD": "\udcff"})
        assert kept.stdout == b"\xff"
        dotted = await sandbox.exec(["env"], env={"WITH.DOT": "1", "9": "2"})
        assert {"WITH.DOT=1", "9=2"} <= set(dotted.text.splitlines())
        for data in (bytearray(b"some"), memoryview(b"some")):
            assert (await sandbox.exec("cat", stdin=data)).stdout == b"some"
            await sandbox.write_bytes("file", data)
            assert await sandbox.read_bytes("file") == b"some"

    world.run(body)


def test_time_outs_that_are_over_and_those_that_never_come(world: World) -> None:
    async def body(sandbox: Sandbox) -> None:
        for timeout in (0, -1, -math.inf):
            result = await sandbox.exec("sleep 30", timeout=timeout)
            assert (result.exit_code, result.timed_out) == (124, True)
            assert result.duration < 15
        assert (await sandbox.exec("echo done", timeout=math.inf)).text == "done\n"
        assert (await sandbox.exec("echo done", timeout=True)).text == "done\n"

    assert check_timeout(None) is check_timeout(math.inf) is None
    world.run(body)


def test_directories_in_which_nothing_can_run(world: World) -> None:
    async def body(sandbox: Sandbox) -> None:
        await sandbox.write_bytes("file", b"")
        for directory, code in (("/nowhere", 127), ("file", 126)):
            result = await sandbox.exec("echo ran", cwd=directory)
            assert (result.exit_code, result.stdout) == (code, b"")
            assert directory.encode() in result.stderr
            process = await sandbox.spawn("echo ran", cwd=directory)
            assert await process.wait(20) == code
            assert directory.encode() in await process.read_soon(2)

    world.run(body)


def test_files_larger_than_can_be_held(world: World) -> None:
    sparse = "truncate -s 1T big || dd if=/dev/zero of=big bs=1 count=1 seek=1024G"

    async def body(sandbox: Sandbox) -> None:
        made = await sandbox.exec(sparse)
        assert made.exit_code == 0, made
        for details in ({}, {"offset": 5}, {"length": 1 << 40}, {"offset": 1 << 30, "length": 1 << 39}):
            with pytest.raises(OSError, match="parts") as caught:
                await sandbox.read_bytes("big", **details)
            assert caught.value.errno == errno.EFBIG
            assert str(caught.value.filename).endswith("big")
        assert (await sandbox.read_bytes("big", offset=(1 << 40) - 3)).startswith(bytes(3))
        assert await sandbox.read_bytes("big", length=10) == bytes(10)
        assert await sandbox.read_bytes("big", offset=(1 << 40) + 99, length=1 << 40) == b""
        found = await sandbox.load("big", 10)
        assert (found.data, found.size >= 1 << 40) == (bytes(10), True)
        await sandbox.write_bytes("small", b"some")
        assert await sandbox.read_bytes("small", length=LARGEST_READ * 2) == b"some"

    world.run(body)
