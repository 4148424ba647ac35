"""Sandboxes made of nothing but a POSIX shell, here a local one: every shell that is installed."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.errors import SandboxReleased
from environments.records import SandboxInfo
from environments.sandboxes.remote_shell import files, program
from environments.sandboxes.remote_shell.killing import kill
from environments.sandboxes.remote_shell.machine import Channel, Machine, Receiver
from environments.sandboxes.remote_shell.sandbox import Place, RemoteSandbox, absolute
from environments.sandboxes.singularity.program_process import ACKNOWLEDGEMENT, ProgramProcess

SHELLS = {
    "dash": ["dash"],
    "bash": ["bash", "--posix"],
    "busybox": ["busybox", "sh"],
}
READ = 'read -r n; eval "$(head -c "$n")"'


class ShellMachine(Machine):
    """Runs programs with a shell of this machine, and kills by the scripts of the ssh backend."""

    def __init__(self, shell: list[str]) -> None:
        self.shell = [shutil.which(shell[0]) or shell[0], *shell[1:]]

    async def open(self, source: bytes, receive: Receiver, *, pty: bool = False) -> Channel:
        channel = ProgramProcess([*self.shell, "-c", READ, "sh"], {"PATH": os.environ["PATH"]})
        begin = b"{\nprintf " + ACKNOWLEDGEMENT + b"\n" + source + b"\n}"
        assert await channel.begin(program.framed(begin), receive)
        return channel

    async def kill(self, mark: str) -> None:
        killed = await asyncio.create_subprocess_exec(*self.shell, "-c", kill(mark).decode())
        assert await killed.wait() == 0

    async def alive(self) -> bool:
        return True

    async def release(self) -> None:
        return


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> list[str]:
    command = SHELLS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return command


@pytest.fixture
def run(shell: list[str], tmp_path: Path) -> Callable[[Callable[[RemoteSandbox], Awaitable[None]]], None]:
    def start(body: Callable[[RemoteSandbox], Awaitable[None]]) -> None:
        async def main() -> None:
            sandbox = make_sandbox(shell, tmp_path)
            try:
                await body(sandbox)
            finally:
                if await sandbox.alive():
                    await sandbox.kill_all()
                    await sandbox.close()

        asyncio.run(asyncio.wait_for(main(), 60))

    return start


def make_sandbox(shell: list[str], home: Path) -> RemoteSandbox:
    place = Place(
        family=program.new_family(),
        home=str(home),
        working_directory=str(home),
        scratch=str(home / "scratch"),
        user="me",
        environment={"PATH": os.environ["PATH"], "HOME": str(home)},
    )
    return RemoteSandbox(ShellMachine(shell), SandboxInfo("shell", "none", "public", "test"), place)


def living(arguments: str) -> int:
    table = subprocess.run(["ps", "-eo", "stat,args"], capture_output=True, text=True, check=True)
    lines = [line.split(None, 1) for line in table.stdout.splitlines()]
    return sum(1 for state, args in lines if not state.startswith("Z") and args == arguments)


def test_commands(run: Callable[..., None]) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        result = await sandbox.exec("echo out; echo err >&2; exit 3", env={"A.B": "odd", "C": "two\nlines"})
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        odd = await sandbox.exec(["env"], env={"A.B": "odd", "C": "two\nlines"})
        assert b"A.B=odd\n" in odd.stdout
        assert b"C=two\nlines\n" in odd.stdout
        assert (await sandbox.exec("cat", stdin=b"\0\xff\n")).stdout == b"\0\xff\n"
        assert (await sandbox.exec("kill -9 $$")).killed_by == 9
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        assert (await sandbox.exec("true", cwd="/nowhere")).exit_code == 127
        merged = await sandbox.exec("echo 1; echo 2 >&2; echo 3", merge_output=True)
        assert (merged.stdout, merged.stderr) == (b"1\n2\n3\n", b"")

    run(body)


def test_what_runs_away_is_killed(run: Callable[..., None]) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        number = 10_000_000 + secrets.randbelow(10_000_000)
        runaways = f"sleep {number} & (setsid env -i sleep {number} &) ; (trap '' TERM; sleep {number}) & "
        result = await sandbox.exec(f"{runaways} echo up; sleep {number}", timeout=1)
        assert (result.exit_code, result.stdout, result.timed_out) == (124, b"up\n", True)
        assert living(f"sleep {number}") == 0
        await sandbox.exec(runaways)
        assert living(f"sleep {number}") > 0
        await sandbox.kill_all()
        assert living(f"sleep {number}") == 0

    run(body)


def test_files(run: Callable[..., None], tmp_path: Path) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        data = bytes(range(256)) * 100
        names = ["plain", "new\nline", "-dash", "quote'\"", "ü日", "\udcff", "a b ", "*", ".hidden", "..x"]
        for name in names:
            await sandbox.write_bytes(f"d/{name}", data, mode=0o640)
            assert await sandbox.read_bytes(f"d/{name}", offset=10, length=20) == data[10:30]
            assert (tmp_path / "d" / name).read_bytes() == data
        listed = await sandbox.list("d")
        assert sorted(Path(info.path).name for info in listed) == sorted(names)
        assert {(info.kind, info.size, info.mode) for info in listed} == {("file", len(data), 0o640)}
        chunks = [chunk async for chunk in sandbox.download_tar("d")]

        async def again() -> AsyncIterator[bytes]:
            for chunk in chunks:
                yield chunk

        await sandbox.upload_tar(again(), "copy/of")
        copies = {path.name for path in (tmp_path / "copy" / "of" / "d").iterdir()}
        assert copies == {path.name for path in (tmp_path / "d").iterdir()}
        for path, error in (("nothing", FileNotFoundError), ("d", IsADirectoryError)):
            with pytest.raises(error):
                await sandbox.read_bytes(path)
        with pytest.raises(NotADirectoryError):
            await sandbox.write_bytes("d/plain/x", b"")

    run(body)


def test_nothing_works_after_close(run: Callable[..., None]) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        process = await sandbox.spawn("cat")
        await process.write(b"hello\n")
        while not (output := await process.read()):
            await asyncio.sleep(0.01)
        assert output == b"hello\n"
        await process.close_stdin()
        assert await process.wait(10) == 0
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxReleased):
            await sandbox.exec("true")

    run(body)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",))), max_size=3))
def test_any_argument_arrives_as_it_was(shell: list[str], arguments: list[str]) -> None:
    start = program.Start(mark=program.mark_of(program.new_family(), 1), directory="/")
    source = program.for_arguments(["printf", "%s\\0", *arguments, ""], start)
    found = subprocess.run(
        [*shell, "-c", READ], input=program.framed(source), capture_output=True, check=True
    )
    assert found.stdout.decode().split("\0")[:-2] == arguments


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_program_cut_short_does_not_run(shell: list[str], data: st.DataObject) -> None:
    start = program.Start(mark=program.mark_of(program.new_family(), 1), directory="/")
    whole = program.framed(program.for_shell("echo ran", start))
    cut = data.draw(st.integers(0, len(whole) - 1))
    found = subprocess.run([*shell, "-c", READ], input=whole[:cut], capture_output=True, check=False)
    assert found.stdout == b""


def test_marks_of_a_family_begin_alike() -> None:
    family = program.new_family()
    marks = [program.mark_of(family, number) for number in (1, 2, 999_999, 1_000_001)]
    assert all(mark.startswith(family) and len(mark) == 16 for mark in marks)
    assert marks[0] == marks[3]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [("", "/w"), (".", "/w"), ("a", "/w/a"), ("/a", "/a"), ("~", "/h"), ("~/a", "/h/a"), ("~x", "/w/~x")],
)
def test_absolute_paths(path: str, wanted: str) -> None:
    assert absolute(path, "/h", "/w") == wanted


def test_errors_of_scripts() -> None:
    assert isinstance(files.error_of(99, b"errno ENOENT\n", "p"), FileNotFoundError)
    assert isinstance(files.error_of(98, b"mkdir: cannot create: Permission denied", "p"), PermissionError)
    assert files.error_of(98, b"cat: write error: No space left on device", "p").errno == 28
    assert "strange" in str(files.error_of(98, b"strange", "p"))


def test_what_prints_more_than_can_be_held_is_ended(
    run: Callable[[Callable[[RemoteSandbox], Awaitable[None]]], None],
) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        await sandbox.write_bytes("~/file", b"content")
        script = 'while :; do echo more; done; : "$1"'
        with pytest.raises(OSError, match="1000 bytes") as caught:
            await asyncio.wait_for(sandbox._file(script, "~/file", bound=1000), 30)
        assert caught.value.errno == errno.EFBIG
        assert await sandbox.read_bytes("~/file", length=7) == b"content"

    run(body)
