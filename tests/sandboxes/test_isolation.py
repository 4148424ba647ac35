"""What an agent may try: the framework, the host, its neighbours, the network."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import NotSupported, SandboxBroken, SandboxError
from environments.sandboxes.base import NetworkPolicy, Resources, SandboxSpec
from environments.sandboxes.local.sandbox import LocalSandbox

from .conftest import World

SECRET = "do-not-tell-4711"


@pytest.fixture
def secret_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", SECRET)


@pytest.fixture
def host_server() -> Iterator[int]:
    """A server on the host's loopback; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.sendall(b"host service\n")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_the_framework_environment_stays_outside(world: World, secret_environment: None) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        names = {line.split("=")[0] for line in (await sandbox.exec("env")).text.splitlines()}
        assert names <= {
            *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM", "TMPDIR"),
            *("PWD", "SHLVL", "_", "OLDPWD"),
        }
        if world.rung != "none":
            found = await sandbox.exec("cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'")
            assert SECRET not in found.text

    world.run(body)


def test_the_framework_and_its_processes_cannot_be_reached(isolated_world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        me = os.getpid()
        victim = await asyncio.create_subprocess_exec("sleep", "300")
        script = f"""
        cat /proc/{me}/environ /proc/{me}/cmdline /proc/{me}/maps && echo LEAK
        ls /proc/{me}/fd/ && echo LEAK
        kill -9 {victim.pid} && echo KILLED
        kill -9 -1
        """
        result = await sandbox.exec(script, timeout=20)
        assert "LEAK" not in result.text
        assert "KILLED" not in result.text
        await asyncio.sleep(0.1)
        assert victim.returncode is None
        victim.kill()
        await victim.wait()

    isolated_world.run(body)


def test_the_process_table_is_its_own(rooted_world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        numbers = (await sandbox.exec("ls /proc | grep -E '^[0-9]+$'")).text.split()
        assert 0 < len(numbers) < 10
        assert "1" in numbers
        denied = await sandbox.exec("cat /proc/1/environ; ls -l /proc/1/fd/; cat /proc/1/mem")
        assert denied.stdout == b""
        assert (await sandbox.exec("kill -9 1; kill -STOP 1; kill -TERM 1; sleep 0.2; echo still here")).text

    rooted_world.run(body)


def test_no_privileges(isolated_world: World) -> None:
    probe = (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "assert libc.prctl(39, 0, 0, 0, 0) == 1, 'no_new_privs'\n"
        "assert libc.unshare(0x10000000) == -1 or os.environ['RUNG'] == 'landlock', 'user namespace'\n"
        "assert libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == -1, 'mount'\n"
        "assert libc.syscall(425, 8, 0) == -1, 'io_uring'\n"
        "assert libc.syscall(250, 0, 0, 0, 0) == -1, 'keyctl'\n"
        "for uid in (0, 1):\n"
        "    assert libc.setuid(uid) == -1, 'setuid'\n"
        "print('ok')"
    )

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(["/usr/bin/python3", "-c", probe], env={"RUNG": isolated_world.rung})
        assert result.text == "ok\n", result.stderr

    isolated_world.run(body)


def test_host_files_can_be_neither_read_nor_changed(isolated_world: World, tmp_path: Path) -> None:
    for directory in (tmp_path, *list(tmp_path.parents)[:2]):
        directory.chmod(0o777 if directory == tmp_path else 0o755)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "file").chmod(0o666)

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(
            f"cat {tmp_path}/file; echo x > {tmp_path}/file; rm -rf {tmp_path}/file; touch {tmp_path}/new;"
            " touch /usr/bin/new /etc/passwd.new /bin/new; cat /etc/shadow /etc/ssh/*key; ls /root"
        )
        assert b"mine" not in result.stdout
        assert (tmp_path / "file").read_text() == "mine"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        assert not Path("/usr/bin/new").exists()
        assert not Path("/etc/passwd.new").exists()

    isolated_world.run(body)


def test_the_root_is_writable_and_ordinary_programs_run(rooted_world: World) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        script = """set -e
        mkdir -p /app /tests /logs/verifier; echo 1 > /logs/verifier/reward.txt
        test "$(id -un)" = user && test "$(id -u)" = 1000 && test "$HOME" = /home/user
        echo x > /tmp/x; echo x > /dev/shm/x; echo x > /dev/null; head -c 10 /dev/urandom > /tmp/r
        cat <(echo substitution)
        cd /app; git init -q .; git -c user.name=a -c user.email=b commit -q --allow-empty -m first
        git log --oneline | wc -l
        /usr/bin/python3 -c 'import ssl; from multiprocessing import *; Lock(); print(Pool(2).map(abs, [-1]))'
        ls -d /proc/sys/kernel > /dev/null; ! echo 1 > /proc/sys/vm/swappiness
        getent hosts localhost > /dev/null
        """
        result = await sandbox.exec(script, timeout=60)
        assert (result.text, result.exit_code) == ("substitution\n1\n[1]\n", 0), result.stderr

    rooted_world.run(body)


def test_no_network_but_its_own_loopback(rooted_world: World, host_server: int) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(f"cat < /dev/tcp/127.0.0.1/{host_server}", timeout=20)
        assert result.exit_code != 0
        assert b"host service" not in result.stdout
        own = """
        /usr/bin/python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &
        for i in $(seq 100); do
          (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null && echo reached && break; sleep 0.1
        done
        """
        assert (await sandbox.exec(own, timeout=60)).text == "reached\n"
        assert (await sandbox.exec("cat < /dev/tcp/1.1.1.1/53", timeout=20)).exit_code not in (0, 124)
        assert sandbox.info.network == "none"

    rooted_world.run(body)


def test_no_sockets_under_landlock(host_server: int) -> None:
    from .conftest import make_world

    async def body(sandbox: LocalSandbox) -> None:
        result = await sandbox.exec(f"cat < /dev/tcp/127.0.0.1/{host_server}", timeout=20)
        assert b"host service" not in result.stdout
        kinds = "import socket\nfor t in (1, 2):\n  for f in (2, 10, 16, 17):\n    try: socket.socket(f, t)\n"
        kinds += "    except OSError: continue\n    print('made', f, t)"
        assert (await sandbox.exec(["/usr/bin/python3", "-c", kinds])).stdout == b""

    make_world("landlock").run(body)


def test_public_network_on_demand(world: World, host_server: int) -> None:
    async def body(sandbox: LocalSandbox) -> None:
        assert sandbox.info.network == "public"
        result = await sandbox.exec(f"cat < /dev/tcp/127.0.0.1/{host_server}", timeout=20)
        assert result.stdout == b"host service\n"

    world.run(body, SandboxSpec(network=NetworkPolicy("public")))


def test_two_sandboxes_do_not_see_each_other(isolated_world: World) -> None:
    async def main() -> None:
        async with isolated_world.backend() as backend:
            one, two = await asyncio.gather(backend.create(SandboxSpec()), backend.create(SandboxSpec()))
            assert one.id != two.id
            await one.exec("echo mine > ~/file; chmod 777 ~ ~/file; sleep 982 & echo mine > /tmp/shared-name")
            assert (await two.exec(f"cat {one.home}/file /tmp/shared-name")).stdout == b""
            assert not (await two.exec("ps -eo args | grep '[s]leep 982'")).stdout
            await two.exec("kill -9 -1; pkill -9 sleep")
            assert await one.alive()
            assert (await one.exec("cat ~/file")).text == "mine\n"
            await two.close()
            assert await one.alive()

    asyncio.run(main())


def test_breaking_the_sandbox_is_said_to_be_the_agents_doing(world: World) -> None:
    kill_init = (
        "for pid in $(ps -eo pid,args | grep '[i]nside.guardian' | grep -v grep | awk '{print $1}');"
        " do kill -9 $pid; done"
    )

    async def main() -> None:
        async with world.sandbox() as sandbox:
            if world.rung == "landlock":  # kill is refused there, and so are its less known sisters
                search = "import ctypes, os\nme = os.getppid()\nfor pid in range(me - 300, me):\n"
                search += "  ctypes.CDLL(None).syscall(234, pid, pid, 9)"
                await _ignoring_loss(sandbox, f"/usr/bin/python3 -c '{search}'")
                assert await sandbox.alive()
                return
            if world.rung == "none":
                init = (await sandbox.exec("awk '/PPid/ {print $2}' /proc/$PPID/status")).text.strip()
                await _ignoring_loss(sandbox, f"kill -9 {init}")
            else:
                await _ignoring_loss(sandbox, kill_init + "; kill -9 1")
                assert await sandbox.alive()  # number 1 of its process namespace cannot be killed from inside
                return
            with pytest.raises(SandboxBroken):
                for _ in range(50):
                    await sandbox.exec("true")
                    await asyncio.sleep(0.02)
            assert not await sandbox.alive()

    asyncio.run(main())


def test_a_sandbox_that_is_killed_while_nothing_runs_in_it_was_not_broken_by_the_agent(world: World) -> None:
    """Where no process inside can kill the first one; that a background process is left makes no odds."""

    async def main() -> None:
        async with world.backend() as backend, asyncio.timeout(100):
            sandbox = await backend.create(world.spec(SandboxSpec()))
            await sandbox.exec("setsid sleep 300 > /dev/null 2>&1 &")
            await world.destroy(backend, sandbox)
            await sandbox._guard.ended.wait()
            with pytest.raises(SandboxError) as caught:
                await sandbox.exec("true")
            assert isinstance(caught.value, SandboxBroken) == (world.rung in ("landlock", "none"))
            assert not await sandbox.alive()
            await sandbox.close()

    asyncio.run(main())


async def _ignoring_loss(sandbox: LocalSandbox, command: str) -> None:
    try:
        await sandbox.exec(command, timeout=20)
    except SandboxBroken:
        return


@pytest.mark.parametrize(
    "spec",
    [
        SandboxSpec(image="debian:12"),
        SandboxSpec(resources=Resources(gpus=1)),
    ],
)
def test_what_it_cannot_do_is_refused(strongest_world: World, spec: SandboxSpec) -> None:
    async def main() -> None:
        async with strongest_world.backend() as backend:
            with pytest.raises(NotSupported):
                await backend.create(spec)

    asyncio.run(main())


def test_nothing_is_inherited_from_the_framework(strongest_world: World, tmp_path: Path) -> None:
    """Open files of the framework do not appear among the descriptors of a command."""
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)

        async def body(sandbox: LocalSandbox) -> None:
            listed = await sandbox.exec(["/usr/bin/ls", "/proc/self/fd"])
            assert listed.text.split() == ["0", "1", "2", "3"]  # 3 is the directory being listed

        strongest_world.run(body)
