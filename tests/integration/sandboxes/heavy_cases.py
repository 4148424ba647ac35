"""Cases of the suite of all backends that take long: a gigabyte there and back, many sandboxes at once."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sandboxes.conftest import World

from environments.sandboxes import transfer
from environments.sandboxes.base import Sandbox, SandboxSpec

GIGABYTE = 1 << 30
_PART = 1 << 20
_MOST_MEMORY = 192 << 20
"""Bytes by which this process may grow while a gigabyte goes through it."""


def make_large_tree(top: Path) -> None:
    """A gigabyte in files of all sizes, none of whose megabytes are alike."""
    block = random.Random(4711).randbytes(_PART)
    left, number = GIGABYTE, 0
    for size in (400 << 20, 200 << 20, 100 << 20, *[8 << 20] * 30, *[1 << 20] * 50, 0):
        size = min(size, left) or left
        directory = top / f"d{number % 7}" / f"e{number % 3}"
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"file {number}").open("wb") as file:
            for part in range(0, size, _PART):
                file.write(b"%016d%016d" % (number, part) + block[32 : min(_PART, size - part)])
        left, number = left - size, number + 1
    assert left == 0


def digest(top: Path) -> str:
    """One hash over names and contents, as ``HASH_INSIDE`` makes it."""
    lines = []
    for path in top.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                lines.append(f"./{path.relative_to(top)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


HASH_INSIDE = r"""
find . -type f | sed 's/.*/"&"/' | xargs sha256sum | sed -E 's/^([0-9a-f]+)  (.*)/\2 \1/' |
LC_ALL=C sort | sha256sum | cut -c1-64
"""


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.asynccontextmanager
async def bounded_memory() -> AsyncIterator[None]:
    """Fail where this process grows too much meanwhile."""
    before, most = resident(), 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, resident())
            await asyncio.sleep(0.05)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
    assert most - before < _MOST_MEMORY, f"{(most - before) >> 20} MiB more"


@pytest.mark.timeout(900)
def test_a_gigabyte_there_and_back(strongest_world: World, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    make_large_tree(tmp_path / "in")
    expected = digest(tmp_path / "in")

    async def main() -> None:
        async with strongest_world.backend() as backend:
            sandbox = await backend.create(strongest_world.spec(SandboxSpec()))
            async with bounded_memory():
                assert await transfer.upload_dir(sandbox, tmp_path / "in", "~/tree") == GIGABYTE
            found = await sandbox.exec(HASH_INSIDE, cwd="~/tree", timeout=300)
            assert found.text.strip() == expected
            async with bounded_memory():
                assert await transfer.download_dir(sandbox, "~/tree", tmp_path / "out") == GIGABYTE
            assert digest(tmp_path / "out") == expected
            await sandbox.close()

    asyncio.run(main())


@pytest.mark.timeout(600)
def test_sixty_four_at_once(strongest_world: World) -> None:
    async def main() -> None:
        async with strongest_world.backend(sandbox_creation_concurrency=16) as backend:

            async def one(number: int) -> Sandbox:
                wanted = SandboxSpec(environment={"NUMBER": str(number)})
                sandbox = await backend.create(strongest_world.spec(wanted))
                await sandbox.write_bytes("~/number", b"%d\n" % number)
                return sandbox

            sandboxes = await asyncio.gather(*map(one, range(64)))
            assert len({sandbox.id for sandbox in sandboxes}) == 64
            for _ in range(3):
                results = await asyncio.gather(
                    *(sandbox.exec("echo $NUMBER; cat ~/number", timeout=120) for sandbox in sandboxes)
                )
                assert [result.text for result in results] == [f"{n}\n{n}\n" for n in range(64)]
            await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))

    asyncio.run(main())


def test_many_file_operations_at_once_in_one_sandbox(strongest_world: World) -> None:
    async def main() -> None:
        async with strongest_world.backend() as backend, asyncio.timeout(110):
            sandbox = await backend.create(strongest_world.spec(SandboxSpec()))
            names = [f"~/many/{number}" for number in range(80)]
            await asyncio.gather(*(sandbox.write_bytes(name, name.encode()) for name in names))
            assert await asyncio.gather(*map(sandbox.read_bytes, names)) == [name.encode() for name in names]
            assert len(await sandbox.list("~/many")) == 80
            await sandbox.close()

    asyncio.run(main())
