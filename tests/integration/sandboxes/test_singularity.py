"""The singularity backend on the real engine: isolation, limits, images, what dead runs leave."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real_backends import RUN_ID, SECONDS, RealWorld, living, singularity_settings

from environments.errors import ConfigError, NotSupported, SandboxBroken, SandboxError
from environments.sandboxes.base import NetworkPolicy, Resources, SandboxSpec
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox
from environments.sandboxes.singularity import instance

pytestmark = pytest.mark.integration


@pytest.fixture
def world() -> RealWorld:
    return RealWorld("singularity", singularity_settings())


async def fails(sandbox: RemoteSandbox, command: str) -> bool:
    return (await sandbox.exec(command, timeout=60)).exit_code != 0


def test_what_it_is_and_what_it_refuses(world: RealWorld) -> None:
    async def main() -> None:
        async with world.backend() as backend:
            await backend.check()
            sandbox = await backend.create(SandboxSpec(resources=Resources(memory_mb=300, processes=50)))
            assert sandbox.info.network == "none"
            assert sandbox.info.image == world.settings["singularity_image"]
            assert sandbox.info.limitations
            with pytest.raises(NotSupported):
                await backend.create(SandboxSpec(resources=Resources(gpus=1)))
            with pytest.raises(SandboxError, match="no image"):
                await backend.create(SandboxSpec(image="/nowhere/image.sif"))
        async with world.backend(singularity_image="/nowhere") as backend:
            with pytest.raises(ConfigError, match="singularity_image"):
                await backend.check()

    asyncio.run(main())


def test_modes_and_links(world: RealWorld) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        await sandbox.write_bytes("d/tool", b"1", mode=0o755)
        await sandbox.write_bytes("d/tool", b"2")
        assert (await sandbox.stat("d/tool")).mode == 0o755
        await sandbox.exec("cd d; ln -s tool link; mkdir d; ln -s nothing dangling")
        await sandbox.write_bytes("d/link", b"through")
        assert await sandbox.read_bytes("d/tool") == b"through"
        kinds = {Path(i.path).name: i.kind for i in await sandbox.list("d")}
        assert kinds == {"tool": "file", "link": "link", "d": "directory", "dangling": "link"}

    world.run(body)


def test_the_host_is_out_of_reach(world: RealWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_FRAMEWORK", "xyzzy-secret")
    monkeypatch.setenv("APPTAINERENV_LEAK", "xyzzy-secret")
    secret = tmp_path / "secret"
    secret.write_text("host secret")

    async def body(sandbox: RemoteSandbox) -> None:
        found = await sandbox.exec("env; cat /proc/*/environ 2>/dev/null", output_limit=10**7)
        assert b"xyzzy-secret" not in found.stdout
        await sandbox.exec(["ln", "-s", str(secret), "leak"])
        for path in ("leak", str(secret), f"/proc/1/root{secret}", f"/proc/self/root{secret}"):
            with pytest.raises(OSError):
                await sandbox.read_bytes(path)
        await sandbox.write_bytes("leak", b"mine") if await _exists(sandbox, str(tmp_path)) else None
        assert secret.read_text() == "host secret"
        assert await fails(sandbox, f"kill -0 {os.getpid()}")
        assert await fails(sandbox, f"test -e /proc/{os.getpid()}/cmdline") or os.getpid() < 300

    world.run(body)


async def _exists(sandbox: RemoteSandbox, path: str) -> bool:
    return not await fails(sandbox, f"test -d '{path}'")


@pytest.mark.skipif(os.geteuid() != 0, reason="a user's sandbox has kernel settings of its own")
def test_the_kernel_cannot_be_changed(world: RealWorld) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        # Opening is enough to know; nothing is written.
        for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/sys/power/state"):
            assert await fails(sandbox, f"test -e {path} && : >>{path}"), path
        kernel_files = await sandbox.exec(
            "find /proc /sys -not -path '/proc/[0-9]*' -type f -perm /222 2>/dev/null | "
            "while read f; do (: >>$f) 2>/dev/null && echo $f; done | grep -v '^/proc/[st][a-z-]*self'",
            timeout=60,
        )
        assert kernel_files.text == ""
        for command in (
            "mount -t tmpfs none /mnt",
            "umount /proc/sys",
            "mount -o remount,rw /proc/sys",
            "unshare -Urm umount /proc/sys",
            "unshare -Urm mount -o remount,rw,bind /proc/sys",
            "unshare -Urmpf mount -t proc proc /mnt",
            "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
            "chroot /proc/1/root true && test -e /nowhere",
        ):
            assert await fails(sandbox, command), command
        status = (await sandbox.exec("cat /proc/self/status")).text
        assert "NoNewPrivs:\t1" in status
        effective = int(status.split("CapEff:\t")[1].split()[0], 16)
        for capability in (12, 16, 17, 19, 21, 22, 23, 24, 25, 27):  # net_admin, sys_*, mknod
            assert not effective & 1 << capability

    world.run(body)


def test_network_none_is_loopback_alone(world: RealWorld) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        names = (await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")).text.split()
        assert names == ["lo"]

    world.run(body)

    async def public(sandbox: RemoteSandbox) -> None:
        names = (await sandbox.exec("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '")).text.split()
        assert len(names) > 1
        assert any("network is the host's" in text for text in sandbox.info.limitations)

    world.run(public, SandboxSpec(network=NetworkPolicy("public")))


def test_limits_hold(world: RealWorld) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        if not sandbox.info.resources:
            pytest.skip("; ".join(sandbox.info.limitations))
        hog = await sandbox.exec("head -c 600000000 /dev/zero | tail", timeout=60)
        assert hog.exit_code != 0
        assert (await sandbox.exec("echo alive")).text == "alive\n"
        bomb = await sandbox.exec(f"f() {{ sleep {SECONDS} & f | f & }}; f; sleep {SECONDS}", timeout=5)
        assert bomb.timed_out
        assert living(f"sleep {SECONDS}") == 0
        assert (await sandbox.exec("echo calm")).text == "calm\n"

    world.run(body, SandboxSpec(resources=Resources(memory_mb=200, processes=60, cpus=1.5)))


def test_disk_space_is_limited_where_a_task_says_so(world: RealWorld) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        if sandbox.info.resources.get("storage_mb") != 80:
            assert "disk space is not limited" in sandbox.info.limitations
            return
        filled = await sandbox.exec("dd if=/dev/zero of=/file bs=1M count=200", timeout=60)
        assert filled.exit_code != 0
        assert b"No space left" in filled.stderr
        assert (await sandbox.exec("rm /file; echo x >/file && echo fine")).text == "fine\n"

    world.run(body, SandboxSpec(resources=Resources(storage_mb=80)))


def test_an_exhausted_sandbox_is_cleared_by_kill_all(world: RealWorld) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        await sandbox.exec(
            f"for i in $(seq 100); do setsid env -i sleep {SECONDS} & done; sleep 1", timeout=30
        )
        assert living(f"sleep {SECONDS}") > 10
        await sandbox.kill_all()
        assert living(f"sleep {SECONDS}") == 0
        assert (await sandbox.exec("echo calm")).text == "calm\n"

    world.run(body, SandboxSpec(resources=Resources(processes=40)))


def test_killing_everything_inside_does_no_harm(world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "_START_TIMEOUT", 3.0)

    async def body(sandbox: RemoteSandbox) -> None:
        await sandbox.exec("sleep 0.3; kill -9 -1")
        assert (await sandbox.exec("echo again")).text == "again\n"
        await sandbox.exec(
            "sleep 0.3; for p in /proc/[0-9]*; do kill -STOP ${p#/proc/}; done & sleep 1", timeout=5
        )
        assert (await sandbox.exec("echo and again")).text == "and again\n"
        assert await fails(sandbox, "kill -9 1; sleep 0.2; false")
        assert await sandbox.alive()

    world.run(body)


def test_who_broke_it(world: RealWorld) -> None:
    async def main() -> None:
        async with world.backend() as backend:
            emptied = await backend.create(SandboxSpec())
            await emptied.exec("rm -rf --no-preserve-root / 2>/dev/null", timeout=60)
            with pytest.raises(SandboxBroken):
                await emptied.exec("true")
            assert not await emptied.alive()
            idle: Any = await backend.create(SandboxSpec())
            await asyncio.sleep(0.5)
            os.kill(idle._machine._instance.pid, 9)  # by the administrator, say
            await asyncio.sleep(0.5)
            with pytest.raises(SandboxError) as caught:
                await idle.exec("true")
            assert not isinstance(caught.value, SandboxBroken)
            busy: Any = await backend.create(SandboxSpec())
            running = asyncio.ensure_future(busy.exec(f"touch begun; sleep {SECONDS}"))
            async with asyncio.timeout(60):
                while (await busy.exec("[ -e begun ]")).exit_code:
                    await asyncio.sleep(0.1)
            os.kill(busy._machine._instance.pid, 9)  # as the kernel does when memory runs out
            with pytest.raises(SandboxBroken):
                await running
            for sandbox in (emptied, idle, busy):
                await sandbox.close()

    asyncio.run(main())


def test_many_at_once(world: RealWorld) -> None:
    async def main() -> None:
        async with world.backend(sandbox_creation_concurrency=16) as backend:
            sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(48)))

            async def work(number: int, sandbox: RemoteSandbox) -> str:
                await sandbox.write_bytes("/tmp/number", b"%d\n" % number)
                return (await sandbox.exec("cat /tmp/number; ls /tmp", timeout=60)).text

            results = await asyncio.gather(*(work(n, sandbox) for n, sandbox in enumerate(sandboxes)))
            assert results == [f"{n}\nnumber\n" for n in range(48)]

    asyncio.run(main())
    assert nothing_is_left()


def nothing_is_left() -> bool:
    """Whether nothing of this test process is on the host: no instance, file or mount. Others may be."""
    base = Path(os.environ.get("TMPDIR", "/tmp")) / f"hermes-singularity-{os.geteuid()}"
    try:
        files = [path for path in base.iterdir() if RUN_ID in path.name]
    except FileNotFoundError:  # the last run removes it
        files = []
    processes = [path for path in Path("/proc").iterdir() if path.name.isdigit() and _is_ours(path)]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if RUN_ID in line]
    return not (processes or files or mounts)


def _is_ours(process: Path) -> bool:
    try:
        return f"[hermes-{RUN_ID}-".encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


def test_a_bare_root_file_system_of_busybox(world: RealWorld, tmp_path: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes()[:4096]:  # its interpreter
        pytest.skip("there is no static busybox to make an image of")
    root = tmp_path / "root"
    for name in ("bin", "etc", "root", "tmp", "proc", "sys", "dev", "var", "usr"):
        (root / name).mkdir(parents=True)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in subprocess.run(
        [busybox, "--list"], capture_output=True, text=True, check=True
    ).stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")

    async def body(sandbox: RemoteSandbox) -> None:
        assert (await sandbox.exec('echo "$0 $HOME"')).text == "sh /root\n"
        data = bytes(range(256)) * 1000
        await sandbox.write_bytes("a\nb/ü", data, mode=0o640)
        assert await sandbox.read_bytes("a\nb/ü") == data
        assert await sandbox.read_bytes("a\nb/ü", offset=3, length=5) == data[3:8]
        found = await sandbox.stat("a\nb/ü")
        assert (found.kind, found.size, found.mode) == ("file", len(data), 0o640)
        assert [Path(i.path).name for i in await sandbox.list("a\nb")] == ["ü"]
        chunks = [chunk async for chunk in sandbox.download_tar("a\nb")]

        async def again() -> Any:
            for chunk in chunks:
                yield chunk

        await sandbox.upload_tar(again(), "/tmp/copy")
        assert await sandbox.read_bytes("/tmp/copy/a\nb/ü") == data
        late = await sandbox.exec("(setsid sleep 34969 &) ; sleep 34969", timeout=1)
        assert late.timed_out
        assert living("sleep 34969") == 0

    world.run(body, SandboxSpec(image=str(root)))


def test_commands_use_what_the_image_has(world: RealWorld) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        assert (await sandbox.exec("pwd")).text == "/app\n"
        assert (await sandbox.exec("echo $X; id -u", user="root")).text == "1\n0\n"
        assert not await fails(sandbox, "touch /usr/bin/new /etc/new && chown 1:1 /etc/new")
        assert "LD_LIBRARY_PATH" not in (await sandbox.exec("env")).text

    spec = SandboxSpec(working_directory="/app", environment={"X": "1"})
    world.run(body, replace(spec))
