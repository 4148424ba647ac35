"""An agent that stops what serves its container: engines start commands by processes inside."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import pytest
from docker_engines import BUSYBOX, IMAGE, EngineWorld, use_engine

from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.docker.backend import DockerBackend
from environments.sandboxes.docker.engine import EngineError
from environments.sandboxes.docker.sandbox import DockerSandbox

pytestmark = pytest.mark.integration

STOP_ALL = "while :; do kill -STOP -1; done"
STOP_THE_ENGINE = """\
while :; do
  for place in /proc/[0-9]*; do
    read -r name < $place/comm; case $name in runc*|crun*) kill -STOP ${place#/proc/};; esac
  done
done"""
STOP_ALL_BUT_SLEEP = """\
while :; do
  for place in /proc/[0-9]*; do
    read -r name < $place/comm; [ $name = sleep ] || [ $place = /proc/$$ ] || kill -STOP ${place#/proc/}
  done
done"""


ENGINES = pytest.mark.parametrize("engine", ["docker", "podman"])

Body = Callable[[DockerSandbox], Awaitable[None]]


def run(world: EngineWorld, body: Body) -> None:
    async def main() -> None:
        async with asyncio.timeout(110), world.docker() as sandbox:
            await body(sandbox)

    asyncio.run(main())


async def has_image(backend: DockerBackend, name: str) -> bool:
    try:
        await backend._engine.call("GET", f"/images/{name}/json")
    except EngineError:
        return False
    return True


def changed_image(name: str, command: str, user: str = "") -> str:
    """The usual image after a command of root's, with another default user."""

    async def main() -> None:
        backend = EngineWorld().make()
        try:
            if await has_image(backend, name):
                return
            made = await backend.create(SandboxSpec())
            await made.exec(command, user="0")
            query = {"container": made._container.id, "repo": name, "tag": "latest"}
            query["changes"] = f"USER {user or '0'}"
            await backend._engine.call("POST", "/commit", query=query, body={})
        finally:
            await backend.close()

    asyncio.run(main())
    return name


async def write_at_last(sandbox: DockerSandbox, path: str, data: bytes) -> None:
    """Write a file where the program that does so may be killed along with all others."""
    for _ in range(5):
        with contextlib.suppress(OSError):
            return await sandbox.write_bytes(path, data)
    raise AssertionError("no file can be written")


@pytest.mark.parametrize(
    ("shell", "attack"),
    [("dash", STOP_ALL), ("busybox", STOP_ALL), ("bash", STOP_ALL), ("dash", STOP_THE_ENGINE)],
    ids=["dash", "busybox", "bash", "the-engine"],
)
def test_all_goes_on_where_an_agent_stops_it(
    shell: str, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_engine("docker", monkeypatch)
    image = {"dash": IMAGE, "busybox": BUSYBOX}.get(shell) or changed_image(
        "sandbox/bash", "ln -sf bash /bin/sh"
    )

    async def body(sandbox: DockerSandbox) -> None:
        begun = time.monotonic()
        await sandbox.spawn(attack)
        late = await sandbox.exec("echo started; sleep 50", timeout=5)
        assert late.timed_out or late.killed_by
        await sandbox.spawn(attack)
        await asyncio.sleep(0.5)
        await write_at_last(sandbox, "file", b"content")
        assert await sandbox.read_bytes("file") == b"content"
        assert time.monotonic() - begun < 60
        await sandbox.kill_all()
        assert (await sandbox.exec("echo on", timeout=10)).text == "on\n"

    run(EngineWorld(image), body)


@ENGINES
def test_an_agent_that_may_become_root(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_engine(engine, monkeypatch)
    command = "cp /bin/sh /bin/rootly && chmod 4755 /bin/rootly"
    image = changed_image("sandbox/rootly", command, user="1000")

    async def body(sandbox: DockerSandbox) -> None:
        assert (await sandbox.exec("id -u; rootly -pc 'kill -0 1 && id -u'")).text == "1000\n0\n"
        assert (await sandbox.exec("kill -0 1")).exit_code != 0
        await sandbox.spawn(["rootly", "-pc", STOP_ALL])
        await asyncio.sleep(0.5)
        await write_at_last(sandbox, "/tmp/file", b"content")
        await sandbox.kill_all()
        assert (await sandbox.exec("id -u", timeout=10)).text == "1000\n"

    run(EngineWorld(image), body)


@ENGINES
def test_a_cancelled_command_is_left_soon(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_engine(engine, monkeypatch)

    async def body(sandbox: DockerSandbox) -> None:
        await sandbox.spawn(STOP_ALL_BUT_SLEEP)
        await asyncio.sleep(0.5)
        waiting = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await asyncio.sleep(0.5)
        begun = time.monotonic()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert time.monotonic() - begun < 20
        await sandbox.close()
        assert time.monotonic() - begun < 40

    run(EngineWorld(), body)


@ENGINES
def test_programs_that_are_stopped_alone_go_on(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_engine(engine, monkeypatch)

    async def body(sandbox: DockerSandbox) -> None:
        content = b"0123456789" * 5_000_000
        writing = asyncio.ensure_future(sandbox.write_bytes("large", content))
        await asyncio.sleep(0.05)
        await sandbox.exec("pkill -STOP cat || kill -STOP $(grep -lx cat /proc/[0-9]*/comm | cut -d/ -f3)")
        await writing
        assert (await sandbox.stat("large")).size == len(content)

    run(EngineWorld(), body)
