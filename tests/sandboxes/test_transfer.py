"""Files and trees in and out; nothing that comes out may leave its directory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import hashlib
import io
import os
import shlex
import shutil
import tarfile
import threading
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.sandboxes import transfer
from environments.sandboxes.extraction import Extraction
from environments.sandboxes.local.sandbox import LocalSandbox
from environments.sandboxes.reading import read_start

from .conftest import World, make_world
from .counting import new_duration


def digest(top: Path) -> dict[str, str]:
    """Content of a tree by relative path, links and modes included."""
    found = {}
    for path in sorted(top.rglob("*")):
        name = os.fsencode(path.relative_to(top)).decode("utf-8", "backslashreplace")
        if path.is_symlink():
            found[name] = f"link {path.readlink()}"
        elif path.is_dir():
            found[name] = "directory"
        else:
            found[name] = f"{path.stat().st_mode & 0o111:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return found


def make_tree(top: Path) -> None:
    (top / "deep" / "er" / "est").mkdir(parents=True)
    (top / "empty").mkdir()
    names = ["plain", "with space", "new\nline", "ünïcode", "-dash", os.fsdecode(b"\xff\xfe"), "y" * 200]
    for number, name in enumerate(names):
        (top / name).write_bytes(os.urandom(1000 * number))
        (top / "deep" / "er" / name).write_bytes(b"")
    (top / "deep" / "large").write_bytes(os.urandom(5_000_000))
    (top / "tool").write_text("#!/bin/sh\n")
    (top / "tool").chmod(0o755)
    (top / "link").symlink_to("deep/large")
    (top / "deep" / "up").symlink_to("../plain")
    (top / "dangling").symlink_to("nothing")


def test_a_tree_there_and_back(world: World, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    make_tree(tmp_path / "in")

    async def body(sandbox: LocalSandbox) -> None:
        sent = await transfer.upload_dir(sandbox, tmp_path / "in", "~/new/place")
        assert sent == sum(
            p.stat().st_size for p in (tmp_path / "in").rglob("*") if p.is_file() and not p.is_symlink()
        )
        assert (await sandbox.exec("find ~/new/place | wc -l")).exit_code == 0
        assert await transfer.download_dir(sandbox, "~/new/place", tmp_path / "out" / "tree") == sent
        assert digest(tmp_path / "out" / "tree") == digest(tmp_path / "in")
        await sandbox.exec("ln -s place ~/new/link")
        assert await transfer.download_dir(sandbox, "~/new/link", tmp_path / "out" / "linked") == sent
        await transfer.download_dir(sandbox, "~/new/place/", tmp_path / "out" / "tree")  # over what is there
        assert digest(tmp_path / "out" / "tree") == digest(tmp_path / "in")

    world.run(body)


@pytest.mark.parametrize("rung", ["namespaces", "none"])
@pytest.mark.parametrize("size", [None, 0, 1, 100, 50_000])
def test_small_trees_there_and_back_many_times(rung: str, size: int | None, tmp_path: Path) -> None:
    """A small archive is packed before tar has begun, which must not take tar's input from it."""
    source = tmp_path / "in"
    source.mkdir()
    if size is not None:
        (source / "file").write_bytes(os.urandom(size))

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(["true"])  # what is kept for the next command or file is no leak
        await sandbox.stat(".")
        open_before = len([*Path("/proc/self/fd").iterdir()])
        for number in range(20):
            target = tmp_path / f"out{number}"
            assert await transfer.upload_dir(sandbox, source, f"t{number}") == (size or 0)
            assert await transfer.download_dir(sandbox, f"t{number}", target) == (size or 0)
            assert digest(target) == digest(source)
        assert len([*Path("/proc/self/fd").iterdir()]) <= open_before

    make_world(rung).run(body)


def test_a_stream_that_never_waits_is_unpacked(world: World) -> None:
    """Nothing between the request and the end of the stream gives tar's run a turn of its own."""

    async def body(sandbox: LocalSandbox) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            info, data = member("file", data=b"content")
            archive.addfile(info, io.BytesIO(data))

        async def stream() -> AsyncIterator[bytes]:
            yield buffer.getvalue()

        await sandbox.upload_tar(stream(), "t")
        assert await sandbox.read_bytes("t/file") == b"content"

    world.run(body)


def test_files_there_and_back(world: World, tmp_path: Path) -> None:
    small, large = tmp_path / "small.bin", tmp_path / "large.bin"
    small.write_bytes(bytes(range(256)))
    small.chmod(0o750)
    large.write_bytes(os.urandom(20_000_000))

    async def body(sandbox: LocalSandbox) -> None:
        for file in (small, large):
            assert await transfer.upload_file(sandbox, file, f"~/up/{file.name}.copy") == file.stat().st_size
            assert await transfer.download_file(sandbox, f"~/up/{file.name}.copy", tmp_path / "d" / file.name)
            assert (tmp_path / "d" / file.name).read_bytes() == file.read_bytes()
        assert (await sandbox.stat("~/up/small.bin.copy")).mode == 0o750
        await transfer.upload_file(sandbox, small, "~/up")
        await transfer.upload_file(sandbox, small, "other/")
        assert await sandbox.read_bytes("~/up/small.bin") == await sandbox.read_bytes("other/small.bin")
        await transfer.download_file(sandbox, "~/up/small.bin", tmp_path / "d")
        for remote in ("missing", "~/up"):
            with pytest.raises(OSError):
                await transfer.download_file(sandbox, remote, tmp_path / "d" / "x")
        assert not (tmp_path / "d" / "x").exists()
        with pytest.raises(FileNotFoundError):
            await transfer.download_dir(sandbox, "missing", tmp_path / "d2")
        with pytest.raises(NotADirectoryError):
            await transfer.download_dir(sandbox, "~/up/small.bin", tmp_path / "d2")
        with pytest.raises(FileNotFoundError):
            await transfer.upload_file(sandbox, tmp_path / "missing", "x")
        with pytest.raises(NotADirectoryError):
            await transfer.upload_dir(sandbox, small, "x")

    world.run(body)


def test_what_leads_out_of_a_tree_is_refused(world: World, tmp_path: Path) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(
            "mkdir -p t/sub; echo ok > t/sub/file; ln -s /etc/passwd t/absolute; ln -s ../../x t/sub/up;"
            " mkfifo t/pipe; ln -s sub t/fine; ln t/sub/file t/hard"
        )
        with pytest.raises(PermissionError):
            await transfer.download_dir(sandbox, "t", tmp_path / "strict")
        refused: list[str] = []
        await transfer.download_dir(sandbox, "t", tmp_path / "lax", refused=refused)
        assert sorted(Path(name).name for name in refused) == ["absolute", "pipe", "up"]
        assert sorted(digest(tmp_path / "lax")) == ["fine", "hard", "sub", "sub/file"]
        await sandbox.exec("head -c 2000000 /dev/zero > t/big")
        with pytest.raises(OSError, match="more than"):
            await transfer.download_dir(sandbox, "t", tmp_path / "bounded", max_bytes=1_000_000, refused=[])

    world.run(body)


def test_a_file_of_any_size_does_not_fill_this_machine(world: World, tmp_path: Path) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec("truncate -s 6G huge; ln -s huge link; head -c 2000 /dev/zero > small")
        for name in ("huge", "link"):
            with pytest.raises(OSError, match=str(6 << 30)) as caught:
                await transfer.download_file(sandbox, name, tmp_path / "deep" / "huge")
            assert caught.value.errno == errno.EFBIG
        with pytest.raises(OSError, match="more than 1999"):
            await transfer.download_file(sandbox, "small", tmp_path / "small", max_bytes=1999)
        assert await transfer.download_file(sandbox, "small", tmp_path / "small", max_bytes=2000) == 2000
        if world.rung != "landlock":  # which lets nobody read there
            with pytest.raises(OSError, match="more than 10"):  # tells no size before it is read
                await transfer.download_file(sandbox, "/proc/version", tmp_path / "version", max_bytes=10)
        assert [path.name for path in tmp_path.iterdir()] == ["small"]
        assert await read_start(sandbox, "link", 1000) == (bytes(1000), 6 << 30)
        assert await read_start(sandbox, "small", 2000) == (bytes(2000), 2000)

    world.run(body)


def test_long_zeros_become_holes(strongest_world: World, tmp_path: Path) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec("truncate -s 40M f; printf middle | dd of=f bs=1 seek=20000000 conv=notrunc")
        assert await transfer.download_file(sandbox, "f", tmp_path / "f") == 40 << 20
        data = (tmp_path / "f").read_bytes()
        assert len(data) == 40 << 20
        assert data.strip(b"\0") == data[20_000_000:20_000_006] == b"middle"
        assert (tmp_path / "f").stat().st_blocks * 512 < 20 << 20

    strongest_world.run(body)


class Interrupted(Exception):
    """Stands for any failure of a stream."""


@pytest.mark.parametrize("rung", ["namespaces", "none"])
def test_transfers_that_break_off_end_quietly_and_at_once(
    rung: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "large").write_bytes(bytes(30_000_000))

    tree = f"tree-{uuid.uuid4().hex}"  # some rungs see the tar of other tests as well

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(
            f"mkdir {tree}; ln -s /etc/passwd {tree}/a; head -c 50000000 /dev/urandom > {tree}/b"
        )
        with pytest.raises(PermissionError):
            await transfer.download_dir(sandbox, tree, tmp_path / "out")
        assert (await sandbox.exec(f"pgrep -fc '[t]ar -c -f - -C .* -- {tree}'")).text.strip() == "0"

        async def stream() -> AsyncIterator[bytes]:
            yield tarfile.TarInfo("file").tobuf()
            raise Interrupted

        with pytest.raises(Interrupted):
            await sandbox.upload_tar(stream(), "u")
        for operation in (
            lambda: transfer.download_dir(sandbox, tree, tmp_path / "out", refused=[]),
            lambda: transfer.upload_dir(sandbox, tmp_path / "in", "u"),
        ):
            for wait in (0, 0.005, 0.03):
                running = asyncio.ensure_future(operation())
                await asyncio.sleep(wait)
                running.cancel()
                await asyncio.wait({running})
                assert running.cancelled() or running.exception() is None

    make_world(rung).run(body)
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_cancelled_transfers_leave_nothing_running(strongest_world: World, tmp_path: Path) -> None:
    name = f"tree-{new_duration()}"  # other sandboxes may show their processes here
    (tmp_path / name).mkdir()
    (tmp_path / name / "large").write_bytes(bytes(50_000_000))
    of_ours = (
        "for p in $(pgrep -x tar); do readlink /proc/$p/cwd; tr '\\0' ' ' </proc/$p/cmdline; echo; done"
        f" | grep -c {name}"
    )

    async def body(sandbox: LocalSandbox) -> None:
        await sandbox.exec(f"mkdir out-{name}; head -c 300000000 /dev/zero > out-{name}/large")
        for operation in (
            lambda: transfer.upload_dir(sandbox, tmp_path / name, name),
            lambda: transfer.download_dir(sandbox, f"out-{name}", tmp_path / "out"),
        ):
            running = asyncio.ensure_future(operation())
            await asyncio.sleep(0.1)
            running.cancel()
            with pytest.raises((asyncio.CancelledError, OSError)):
                await running
        assert (await sandbox.exec(of_ours)).text == "0\n"
        assert len([*Path("/proc/self/fd").iterdir()]) < 40

    strongest_world.run(body)


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.mode = kind, link, len(data), 0o6777
    return info, data


def unpack(
    target: Path, members: list[tuple[tarfile.TarInfo, bytes]], refused: list[str] | None = None
) -> int:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    read, write = os.pipe()
    with os.fdopen(write, "wb") as pipe:
        pipe.write(buffer.getvalue()[:60_000])
    return Extraction(target, max_bytes=1000, refused=refused).run(read)


HOSTILE = {
    "parent": [member("../evil", data=b"x")],
    "inner parent": [member("a/../../evil", data=b"x")],
    "absolute": [member("/tmp/evil", data=b"x")],
    "through a link": [member("d", tarfile.SYMTYPE, "."), member("d/file", data=b"x")],
    "link out": [member("l", tarfile.SYMTYPE, "../out")],
    "absolute link": [member("l", tarfile.SYMTYPE, "/etc")],
    "link up through a link": [
        member("a/b/l", tarfile.SYMTYPE, "../.."),
        member("m", tarfile.SYMTYPE, "a/b/l/../evil"),
    ],
    "hard link out": [member("h", tarfile.LNKTYPE, "../secret")],
    "hard link to a link": [member("l", tarfile.SYMTYPE, "x"), member("h", tarfile.LNKTYPE, "l")],
    "device": [member("dev", tarfile.CHRTYPE)],
    "pipe": [member("pipe", tarfile.FIFOTYPE)],
    "too large": [member("big", data=b"x" * 1001)],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(OSError):
        unpack(tmp_path / "target", HOSTILE[name])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret", "target"]
    assert not Path("/tmp/evil").exists()


def test_a_link_that_was_there_before_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "target" / "d").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "target" / "f").symlink_to(tmp_path / "elsewhere" / "f")
    refused: list[str] = []
    unpack(tmp_path / "target", [member("f", data=b"x"), member("d/g", data=b"x")], refused)
    assert refused == ["d/g"]
    assert not list((tmp_path / "elsewhere").iterdir())
    assert (tmp_path / "target" / "f").stat().st_mode & 0o7022 == 0


def test_a_damaged_archive_is_an_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "wb") as pipe:
        pipe.write(b"no archive at all" * 100)
    with pytest.raises(OSError, match="damaged"):
        Extraction(tmp_path / "t", max_bytes=1000, refused=None).run(read)


parts = st.sampled_from(["a", "b", "..", ".", ""])
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)
entries = st.tuples(
    paths, st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE]), paths
)


@given(st.lists(entries, min_size=1, max_size=8))
def test_no_archive_writes_or_leads_out(contents: list[tuple[str, bytes, str]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        target = Path(place, "x", "y", "target")
        members = [
            member(n or "a", kind, link, b"x" * (kind == tarfile.REGTYPE)) for n, kind, link in contents
        ]
        with contextlib.suppress(OSError):
            unpack(target, members, [])
        outside = [
            p for p in Path(place).rglob("*") if p not in (target, target.parent, target.parent.parent)
        ]
        for path in outside:
            assert path.is_relative_to(target)
            with contextlib.suppress(OSError):  # a link to itself leads nowhere
                assert Path(os.path.realpath(path, strict=True)).is_relative_to(target.resolve())
            if path.is_symlink() and not path.exists():
                assert not path.readlink().is_absolute()


def tar_pipe(parts: list[bytes]) -> int:
    """A pipe with a tar stream, written by a thread."""
    read, write = os.pipe()

    def run() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(write, "wb") as pipe:
            pipe.writelines(parts)

    threading.Thread(target=run, daemon=True).start()
    return read


def header(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo("a")
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(records: bytes) -> bytes:
    return header(len(records), tarfile.XHDTYPE) + records + bytes(-len(records) % 512)


MEGABYTE = bytes(1 << 20)
DESCRIBED_BADLY = {
    "pax": [header(100 << 30, tarfile.XHDTYPE), *[MEGABYTE] * 40],
    "global pax": [header(100 << 30, tarfile.XGLTYPE), *[MEGABYTE] * 40],
    "long name": [header(100 << 30, tarfile.GNUTYPE_LONGNAME), *[b"x" * (1 << 20)] * 40],
    "many pax": [pax(b"12 path=abc\n")] * 3000,
    "no number": [pax(b"11 size=ab\n"), header(0)],
    "negative size": [pax(b"13 size=-512\n"), header(512), MEGABYTE[:512]],
    "a name with NUL": [pax(b"12 path=a\0b\n"), header(0)],
    "negative number": [header(0)[:124] + b"\xff" * 12 + header(0)[136:], MEGABYTE[:1024]],
}


@pytest.mark.parametrize("name", DESCRIBED_BADLY)
def test_what_describes_an_entry_is_not_trusted(name: str, tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(OSError):  # tarfile may also take it for the end
            Extraction(tmp_path / "t", max_bytes=1 << 20, refused=[]).run(tar_pipe(DESCRIBED_BADLY[name]))
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert sum(path.lstat().st_size for path in (tmp_path / "t").iterdir()) == 0


def test_sparse_files_and_deep_trees_cost_this_machine_little(strongest_world: World, tmp_path: Path) -> None:
    levels = "import os\nfor _ in range(600): os.mkdir('d'); os.chdir('d')\nopen('leaf', 'w')"
    files = "truncate -s 200M sparse; echo end >> sparse; echo here > file"
    script = f"mkdir t; cd t; {files}; python3 -c {shlex.quote(levels)}"

    async def body(sandbox: LocalSandbox) -> None:
        assert (await sandbox.exec(script)).exit_code == 0
        tree = f"{sandbox.working_directory}/t"
        with pytest.raises(PermissionError, match="levels deep"):
            await transfer.download_dir(sandbox, tree, tmp_path / "strict")
        refused: list[str] = []
        await transfer.download_dir(sandbox, tree, tmp_path / "t", refused=refused)
        assert (tmp_path / "t" / "file").read_text() == "here\n"
        sparse = tmp_path / "t" / "sparse"
        assert sparse.stat().st_size == (200 << 20) + 4
        assert sparse.stat().st_blocks * 512 < 8 << 20
        assert refused
        assert all(name.count("/") > 200 for name in refused)
        shutil.rmtree(tmp_path / "t")

    strongest_world.run(body)


def test_names_that_are_too_long_here_are_refused(tmp_path: Path) -> None:
    long = "/".join(["x" * 250] * 20)
    refused: list[str] = []
    assert unpack(tmp_path / "t", [member(long, data=b"x"), member("b", data=b"y")], refused) == 2
    assert refused == [long]
    assert (tmp_path / "t" / "b").read_text() == "y"
    with pytest.raises(PermissionError):
        unpack(tmp_path / "u", [member(long, data=b"x")])
