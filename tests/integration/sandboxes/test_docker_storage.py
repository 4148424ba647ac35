"""The storage a task may use, on an engine whose driver has quotas: Docker on a btrfs of its own."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from docker_engines import BUSYBOX, EngineWorld, own_engine, use_engine

from environments.sandboxes.base import Resources, SandboxSpec

pytestmark = pytest.mark.integration


@contextmanager
def btrfs(directory: Path) -> Iterator[Path]:
    """A file system with quotas, in a file; skips where none can be made or mounted."""
    if os.geteuid() != 0 or not shutil.which("mkfs.btrfs"):
        pytest.skip("a file system with quotas needs root and btrfs-progs")
    image, place = directory / "disk", directory / "mount"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(2 << 30)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no btrfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def test_a_task_gets_the_storage_it_may_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = use_engine("docker", monkeypatch)
    archive = tmp_path / "image.tar"
    subprocess.run(["docker", "-H", address, "save", "-o", archive, BUSYBOX], check=True)

    async def main() -> None:
        spec = SandboxSpec(image=BUSYBOX, resources=Resources(storage_mb=50))
        async with EngineWorld(BUSYBOX).docker(spec) as sandbox:
            assert sandbox.info.resources["storage_mb"] == 50
            assert not [text for text in sandbox.info.limitations if "storage" in text]
            full = await sandbox.exec("dd if=/dev/zero of=/big bs=1M count=100")
            assert full.exit_code != 0
            assert b"quota" in full.stderr.lower()
            with pytest.raises(OSError, match="quota") as caught:
                await sandbox.write_bytes("/other", bytes(60 << 20))
            assert caught.value.errno == errno.EDQUOT
            assert (await sandbox.exec("rm /big && echo alive")).text == "alive\n"
            await sandbox.write_bytes("/other", bytes(20 << 20))

    with btrfs(tmp_path) as place, own_engine(place, "--storage-driver=btrfs") as own:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{own.path}")
        subprocess.run(["docker", "-H", f"unix://{own.path}", "load", "-q", "-i", archive], check=True)
        asyncio.run(asyncio.wait_for(main(), 100))
