"""What a hostile command tries against the framework and the host, on every backend that isolates."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from environments.errors import SandboxBroken
from environments.sandboxes.base import Resources, Sandbox, SandboxSpec

from .conftest import World
from .counting import count, new_duration

SECRET = "sesame-4711-of-the-framework"


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the framework's own user, with a secret in its environment and arguments."""
    with subprocess.Popen(
        ["sh", "-c", f"sleep {new_duration()} # {SECRET}"], env={**os.environ, "API_KEY": SECRET}
    ) as process:
        yield process
        process.kill()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    """A file that any user of the host may read and write."""
    for directory in (tmp_path, *list(tmp_path.parents)[:2]):
        directory.chmod(0o777 if directory == tmp_path else 0o755)
    file = tmp_path / "secret"
    file.write_text(SECRET)
    file.chmod(0o666)
    return file


@pytest.fixture
def host_servers() -> Iterator[tuple[int, str]]:
    """Servers of the host: a port of its loopback, and an abstract name."""
    name = f"hermes-test-{new_duration()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{name}")
        local.listen()
        for server in (tcp, local):
            threading.Thread(target=_greet, args=(server,), daemon=True).start()
        yield tcp.getsockname()[1], name
        for server in (tcp, local):
            server.shutdown(socket.SHUT_RDWR)


def _greet(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(SECRET.encode())


async def python(sandbox: Sandbox, program: str) -> str:
    """What a program printed, and its complaints."""
    result = await sandbox.exec(["/usr/bin/python3", "-c", program], timeout=60)
    return result.text + result.stderr.decode("utf-8", "replace")


def test_the_environment_of_the_framework(
    isolated_world: World, monkeypatch: pytest.MonkeyPatch, victim: subprocess.Popen[bytes]
) -> None:
    monkeypatch.setenv("API_KEY", SECRET)

    async def body(sandbox: Sandbox) -> None:
        for command in (
            "env; cat /proc/*/environ /proc/*/cmdline /proc/*/comm",
            f"cat /proc/{os.getpid()}/environ /proc/{victim.pid}/environ /proc/{os.getppid()}/environ",
            "cat /proc/1/environ /proc/1/task/*/environ; strings /proc/kcore | head -1000",
        ):
            found = await sandbox.exec(command, timeout=60, output_limit=10**7)
            assert SECRET.encode() not in found.stdout + found.stderr

    isolated_world.run(body)


def test_the_files_of_the_host(isolated_world: World, secret_file: Path) -> None:
    async def body(sandbox: Sandbox) -> None:
        ways = [
            *(str(secret_file), f"../../../../../../../..{secret_file}", f"/proc/1/root{secret_file}"),
            *(f"/proc/self/root{secret_file}", f"/proc/1/cwd{secret_file}", f"/.old{secret_file}"),
            f"/proc/{os.getpid()}/root{secret_file}",
        ]
        for number, way in enumerate(ways):
            await sandbox.exec(["ln", "-s", way, f"link{number}"])
            for path in (way, f"link{number}"):
                read = await sandbox.exec(["cat", path])
                assert SECRET.encode() not in read.stdout
                with pytest.raises(OSError):
                    await sandbox.read_bytes(path)
                await sandbox.exec(f"echo overwritten > '{path}'; rm -f '{path}'")
        assert secret_file.read_text() == SECRET
        assert [path.name for path in secret_file.parent.iterdir()] == ["secret"]

    isolated_world.run(body)


def test_the_processes_of_the_host(isolated_world: World, victim: subprocess.Popen[bytes]) -> None:
    attach = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for pid in ({victim.pid}, {os.getpid()}, {os.getppid()}):
    for name, attempt in (
        ("signal", lambda: os.kill(pid, 9)),
        ("group", lambda: os.killpg(pid, 9)),
        ("memory", lambda: open(f"/proc/{{pid}}/mem", "rb")),
        ("files", lambda: os.listdir(f"/proc/{{pid}}/fd")),
        ("pidfd", lambda: __import__("signal").pidfd_send_signal(os.pidfd_open(pid), 9)),
    ):
        try:
            attempt()
        except OSError:
            continue
        print("BREACH", name, pid)
    if libc.ptrace(16, pid, 0, 0) == 0:
        print("BREACH ptrace", pid)
    if libc.syscall(310, pid, 0, 0, 0, 0, 0) > 0:
        print("BREACH process_vm_readv", pid)
print("tried")
"""

    async def body(sandbox: Sandbox) -> None:
        if await same_numbers(sandbox, [victim.pid, os.getpid(), os.getppid()]):
            pytest.skip("the sandbox has processes of its own with these numbers")
        said = await python(sandbox, attach)
        assert "BREACH" not in said, said
        assert "tried" in said
        await sandbox.exec("kill -9 -1; pkill -9 sleep; killall -9 sleep python3", timeout=30)
        await asyncio.sleep(0.2)
        assert victim.poll() is None
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    isolated_world.run(body)


async def same_numbers(sandbox: Sandbox, numbers: list[int]) -> bool:
    """Whether the sandbox's own process table has one of these numbers."""
    listed = (await sandbox.exec("ls /proc")).text.split()
    return sandbox.info.isolation != "landlock" and any(str(number) in listed for number in numbers)


def test_the_network_where_there_is_none(isolated_world: World, host_servers: tuple[int, str]) -> None:
    port, name = host_servers
    reach = f"""
import socket
def attempt(what, family, kind, address, protocol=0):
    try:
        with socket.socket(family, kind, protocol) as s:
            s.settimeout(5)
            s.connect(address)
            s.send(b"x")
            print("BREACH", what, s.recv(100) if kind == socket.SOCK_STREAM else "")
    except OSError:
        return
attempt("loopback", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {port}))
attempt("abstract", socket.AF_UNIX, socket.SOCK_STREAM, "\\0{name}")
for host in ("1.1.1.1", "192.0.2.1", "10.0.0.1", "172.17.0.1", "169.254.169.254"):
    attempt(host, socket.AF_INET, socket.SOCK_STREAM, (host, 80))
    attempt(host, socket.AF_INET, socket.SOCK_DGRAM, (host, 53))
    attempt(host, socket.AF_INET, socket.SOCK_RAW, (host, 0), 1)
attempt("v6", socket.AF_INET6, socket.SOCK_DGRAM, ("2606:4700:4700::1111", 53))
try:
    print("BREACH name", socket.getaddrinfo("example.org", 80))
except OSError:
    pass
print("tried")
"""

    async def body(sandbox: Sandbox) -> None:
        said = await python(sandbox, reach)
        assert "BREACH" not in said, said
        assert "tried" in said
        assert SECRET not in said
        for command in ("ip link set lo down", "ip link add d0 type dummy", "ip route add default dev lo"):
            assert (await sandbox.exec(command)).exit_code != 0

    isolated_world.run(body)


HOGS = {
    "one process": "head -c 700000000 /dev/zero | tail",
    "many processes": "for i in 1 2 3 4 5 6 7; do head -c 100000000 /dev/zero | tail & done; wait; exit 1",
    "shared memory": "dd if=/dev/zero of=/dev/shm/file bs=1M count=700",
    "files in memory": """/usr/bin/python3 -c 'import os
for number in range(7):
    file = os.memfd_create(str(number))
    for _ in range(100): os.write(file, bytes(1 << 20))
'""",
}


@pytest.mark.parametrize("hog", HOGS)
def test_the_memory_of_the_host(isolated_world: World, hog: str) -> None:
    async def main() -> None:
        async with isolated_world.backend() as backend, asyncio.timeout(110):
            wanted = SandboxSpec(resources=Resources(memory_mb=200))
            sandbox = await backend.create(isolated_world.spec(wanted))
            if "memory_mb" not in sandbox.info.resources:
                assert any("memory" in text for text in sandbox.info.limitations)
                pytest.skip("; ".join(sandbox.info.limitations))
            try:
                result = await sandbox.exec(f"{HOGS[hog]} && echo all of it", timeout=60)
            except SandboxBroken:  # the kernel chose its first process: its own doing, its end alone
                return
            assert "all of it" not in result.text
            assert result.exit_code != 0
            # A file in memory outlives who wrote it, so that the kernel may choose at the next command too.
            with suppress(SandboxBroken) if hog == "shared memory" else nullcontext():
                await sandbox.kill_all()
                assert (await sandbox.exec("echo alive")).text == "alive\n"

    asyncio.run(main())


def test_the_processes_that_the_host_can_have(isolated_world: World) -> None:
    seconds = new_duration()

    async def body(sandbox: Sandbox) -> None:
        if "processes" not in sandbox.info.resources:
            assert any("process" in text for text in sandbox.info.limitations)
            pytest.skip("; ".join(sandbox.info.limitations))
        await sandbox.exec(f"for i in $(seq 400); do setsid sleep {seconds} & done; wait", timeout=5)
        await sandbox.spawn(f"while :; do setsid sleep {seconds} & done")
        await asyncio.sleep(2)
        assert count(seconds) <= 90
        await sandbox.kill_all()
        assert count(seconds) == 0
        assert (await sandbox.exec("echo alive")).text == "alive\n"

    isolated_world.run(body, SandboxSpec(resources=Resources(processes=80)))


def test_the_kernel_of_the_host(isolated_world: World) -> None:
    async def body(sandbox: Sandbox) -> None:
        for command in (
            "echo x > /proc/sys/kernel/hostname",
            "echo '|/bin/sh' > /proc/sys/kernel/core_pattern",
            "echo b > /proc/sysrq-trigger",
            "mount -t tmpfs none /mnt",
            "mount -t cgroup none /mnt",
            "mknod /tmp/disk b 254 0 && head -c 1 /tmp/disk",
            "chroot / reboot -f",
            "date -s 2001-01-01",
            "head -c 1 /dev/mem",
            "dmesg -C",
            "insmod /nothing",
        ):
            result = await sandbox.exec(command, timeout=30)
            assert result.exit_code != 0, command
        hostname = socket.gethostname()
        await sandbox.exec("hostname taken-over")
        assert socket.gethostname() == hostname

    isolated_world.run(body)
