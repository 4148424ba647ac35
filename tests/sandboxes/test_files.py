"""Reading and writing files: names, bytes, links, errors."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from environments.sandboxes.local.sandbox import LocalSandbox

from .conftest import World

NAMES = [
    "plain",
    "with space",
    "new\nline",
    "ünïcode-日本",
    "-dash",
    "quote'\"",
    "\udcff-not-utf8",
    "*",
    "x" * 255,
]


def test_bytes_and_names_come_back_as_they_were(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        data = bytes(range(256)) * 40
        for name in NAMES:
            await sandbox.write_bytes(f"~/names/{name}", data)
            assert await sandbox.read_bytes(f"~/names/{name}") == data
        listed = await sandbox.list("~/names")
        assert sorted(Path(info.path).name for info in listed) == sorted(NAMES)
        assert {(info.kind, info.size) for info in listed} == {("file", len(data))}
        large = bytes(range(256)) * 50_000
        await sandbox.write_bytes("large", large)
        assert await sandbox.read_bytes("large") == large
        assert await sandbox.read_bytes("large", offset=1000, length=10) == large[1000:1010]
        assert await sandbox.read_bytes("large", offset=len(large) + 5) == b""
        await sandbox.write_bytes("empty", b"")
        assert await sandbox.read_bytes("empty") == b""

    world.run(body)


def test_modes_and_links(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.write_bytes("tool", b"1", mode=0o755)
        await sandbox.write_bytes("tool", b"2")
        assert (await sandbox.stat("tool")).mode == 0o755
        await sandbox.exec("ln -s tool link; mkdir d; ln -s nothing dangling")
        await sandbox.write_bytes("link", b"through")
        assert (await sandbox.stat("link")).kind == "link"
        assert await sandbox.read_bytes("tool") == b"through"
        kinds = {Path(i.path).name: i.kind for i in await sandbox.list(".")}
        assert kinds == {"tool": "file", "link": "link", "d": "directory", "dangling": "link"}

    world.run(body)


def test_errors_are_those_of_a_file_system(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec("mkdir d; echo x > f; mkfifo pipe; mkdir locked; chmod 500 locked")
        with pytest.raises(FileNotFoundError):
            await sandbox.read_bytes("nothing")
        with pytest.raises(IsADirectoryError):
            await sandbox.read_bytes("d")
        with pytest.raises(IsADirectoryError):
            await sandbox.write_bytes("d", b"")
        with pytest.raises(NotADirectoryError):
            await sandbox.list("f")
        with pytest.raises(NotADirectoryError):
            await sandbox.read_bytes("f/x")
        with pytest.raises(OSError, match="regular"):
            await sandbox.read_bytes("pipe")
        with pytest.raises(OSError, match="regular"):
            await sandbox.write_bytes("pipe", b"")
        with pytest.raises(OSError, match="regular"):
            await sandbox.read_bytes("/dev/zero")
        with pytest.raises(OSError, match="null"):
            await sandbox.read_bytes("a\0b")
        with pytest.raises(FileNotFoundError):
            await sandbox.stat("nothing")
        if world.rung != "none":
            with pytest.raises(OSError):
                await sandbox.write_bytes("/usr/bin/evil", b"")
            with pytest.raises(PermissionError):
                await sandbox.write_bytes("locked/x", b"")
        assert not [i for i in await sandbox.list(".") if ".hermes" in i.path]

    world.run(body)


def test_a_file_that_may_not_be_written_is_not_replaced(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.write_bytes("kept", b"as it was", mode=0o444)
        writable = (await sandbox.exec("[ -w kept ]")).exit_code == 0  # to root all files are
        if writable:
            await sandbox.write_bytes("kept", b"new")
        else:
            with pytest.raises(PermissionError):
                await sandbox.write_bytes("kept", b"new")
        assert await sandbox.read_bytes("kept") == (b"new" if writable else b"as it was")

    world.run(body)


def test_links_never_lead_out_of_the_sandbox(isolated_world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:2]:
        parent.chmod(0o755)

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(["ln", "-s", str(secret), "leak"])
        await sandbox.exec(["ln", "-s", str(tmp_path), "leakdir"])
        for path in (
            "leak",
            "leakdir/secret",
            str(secret),
            f"../../../../../..{secret}",
            f"/proc/self/root{secret}",
        ):
            with pytest.raises(OSError):
                await sandbox.read_bytes(path)
        for path in ("leak", "leakdir/new", str(tmp_path / "new2")):
            try:
                await sandbox.write_bytes(path, b"overwritten")
            except OSError:
                continue
        assert secret.read_text() == "host secret"
        assert [p.name for p in tmp_path.iterdir()] == ["secret"]
        for path in ("/etc/shadow", "/root/.ssh", "/proc/1/root/etc/shadow"):
            with pytest.raises(OSError):
                await sandbox.read_bytes(path)

    isolated_world.run(body)


def test_kernel_files_have_content(rooted_world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        assert b"processor" in await sandbox.read_bytes("/proc/cpuinfo")

    rooted_world.run(body)


def test_many_operations_side_by_side(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await asyncio.gather(*(sandbox.write_bytes(f"f{n}", b"%d" % n) for n in range(50)))
        assert await asyncio.gather(*(sandbox.read_bytes(f"f{n}") for n in range(50))) == [
            b"%d" % n for n in range(50)
        ]

    world.run(body)


def test_many_at_once_that_fill_a_socket(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        contents = {f"f{n}": b"%d" % n * 10_000 for n in range(48)}
        await asyncio.gather(*(sandbox.write_bytes(name, data) for name, data in contents.items()))
        read = await asyncio.gather(*(sandbox.read_bytes(name) for name in contents))
        assert dict(zip(contents, read, strict=True)) == contents

    world.run(body)


def test_writing_through_links_that_lead_nowhere(world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec("mkdir links; cd links; ln -s new/deep/file far; ln -s far 'to it'")
        await sandbox.exec("cd links; ln -s loop loop; ln -s 2 1; ln -s 1 2")
        await sandbox.write_bytes("links/to it", b"there")
        assert await sandbox.read_bytes("links/new/deep/file") == b"there"
        for name in ("loop", "1"):
            with pytest.raises(OSError) as caught:
                await sandbox.write_bytes(f"links/{name}", b"lost")
            assert caught.value.errno in (errno.ELOOP, errno.EINVAL)
            assert (await sandbox.stat(f"links/{name}")).kind == "link"
        assert {Path(info.path).name for info in await sandbox.list("links")} == {
            *("far", "to it", "loop", "1", "2", "new")
        }

    world.run(body)


def test_a_directory_whose_files_come_and_go_is_listed(world: World) -> None:
    churn = (
        "mkdir t; touch t/stays; while :; do "
        "for i in 0 1 2 3 4 5 6 7 8 9; do : > t/a$i; : > t/b$i; : > t/c$i; done; rm -f t/a* t/b* t/c*; done"
    )

    async def body(sandbox: LocalSandbox) -> None:
        process = await sandbox.spawn(churn)
        tree = f"{sandbox.working_directory.rstrip('/')}/t"
        while "stays" not in (await sandbox.exec("ls t")).text:
            await asyncio.sleep(0.05)
        for _ in range(12):
            assert f"{tree}/stays" in [entry.path for entry in await sandbox.list(tree)]
        await process.kill()

    world.run(body)
