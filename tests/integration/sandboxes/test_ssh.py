"""The ssh backend on a real machine: connections, keys, what dead runs leave, what breaks."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from real_backends import SECONDS, RealWorld, living, ssh_settings

from environments.errors import ConfigError, NotSupported, SandboxBroken, SandboxError
from environments.sandboxes.base import NetworkPolicy, Resources, SandboxSpec
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox
from environments.sandboxes.ssh import host as host_module
from environments.sandboxes.ssh.options import parse_address

pytestmark = pytest.mark.integration

PUBLIC = SandboxSpec(network=NetworkPolicy("public"))


@pytest.fixture
def world() -> RealWorld:
    return RealWorld("ssh", ssh_settings())


def test_a_stopped_connection_is_left_for_a_new_one(world: RealWorld) -> None:
    async def body(sandbox: RemoteSandbox) -> None:
        await sandbox.spawn("kill -STOP $PPID; sleep 300")
        await asyncio.sleep(1.0)
        begun = time.monotonic()
        assert (await sandbox.exec("echo on", timeout=5)).text == "on\n"
        late = await sandbox.exec("sleep 100", timeout=1)
        assert late.timed_out
        await sandbox.write_bytes("file", b"x")
        assert await sandbox.read_bytes("file") == b"x"
        await sandbox.close()
        assert time.monotonic() - begun < 60

    world.run(body, PUBLIC)


class Relay:
    """Stands between us and the server, and can be cut."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self.cut()
            server.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._writers += [writer, far_writer]
        with contextlib.suppress(OSError, asyncio.CancelledError):  # at its end the test cancels it
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def relayed(world: RealWorld, tmp_path: Path) -> AsyncIterator[tuple[Relay, dict[str, Any]]]:
    """A relay, and settings that go through it; its key is known under the relay's own port."""
    address = parse_address(world.settings["ssh_host"], "ssh_host")
    async with Relay(address.host, address.port or 22).running() as relay:
        keys = Path(world.settings["ssh_known_hosts"]).read_text().split("\n")[0].split(" ", 1)[1]
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{relay.port} {keys}\n")
        name = f"{address.user}@127.0.0.1:{relay.port}"
        yield relay, {"ssh_host": name, "ssh_known_hosts": str(known)}


def test_what_it_is_and_what_it_refuses(world: RealWorld) -> None:
    async def main() -> None:
        async with world.backend() as backend:
            await backend.check()
            sandbox = await backend.create(PUBLIC)
            assert sandbox.info.isolation == "none (remote user)"
            assert sandbox.info.network == "public"
            assert any("rights" in text for text in sandbox.info.limitations)
            assert "SSH_CONNECTION" not in (await sandbox.exec("env")).text
            for spec in (
                SandboxSpec(),
                replace(PUBLIC, image="debian"),
                replace(PUBLIC, resources=Resources(gpus=1)),
            ):
                with pytest.raises(NotSupported):
                    await backend.create(spec)
        with pytest.raises(ConfigError, match="sandbox_network public"):
            await world.make(sandbox_network="none").check()

    asyncio.run(main())


def test_wrong_keys_and_hosts_are_said_before_the_run(world: RealWorld, tmp_path: Path) -> None:
    unknown = tmp_path / "known_hosts"
    unknown.write_text("")
    key = tmp_path / "key"
    import asyncssh

    pair = asyncssh.generate_private_key("ssh-ed25519")
    pair.write_private_key(key)
    locked = tmp_path / "locked"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", str(locked)]
    subprocess.run(command, check=True)
    machine = parse_address(world.settings["ssh_host"], "ssh_host")
    changed = tmp_path / "changed"
    changed.write_text(f"[{machine.host}]:{machine.port or 22} {pair.export_public_key().decode()}")

    async def message(**settings: Any) -> str:
        async with world.backend(**settings) as backend:
            with pytest.raises(ConfigError) as caught:
                await backend.check()
        return str(caught.value)

    async def main() -> None:
        assert "is not known" in await message(ssh_known_hosts=str(unknown))
        assert "another one than" in await message(ssh_known_hosts=str(changed))
        assert "refuses every key" in await message(ssh_key=str(key))
        assert f"{locked} needs a passphrase" in await message(ssh_key=str(locked))
        assert f"{unknown} cannot be used" in await message(ssh_key=str(unknown))
        assert "cannot connect" in await message(ssh_host="127.0.0.1:9")
        assert "the jump host you@127.0.0.1:9" in await message(ssh_jump_host="you@127.0.0.1:9")

    asyncio.run(main())


def test_many_commands_share_few_connections(world: RealWorld, tmp_path: Path) -> None:
    async def main() -> None:
        async with relayed(world, tmp_path) as (relay, settings), world.backend(**settings) as backend:
            sandboxes = await asyncio.gather(*(backend.create(PUBLIC) for _ in range(64)))

            async def work(number: int, sandbox: RemoteSandbox) -> str:
                await sandbox.write_bytes("number", b"%d\n" % number)
                return (await sandbox.exec("cat number; pwd", timeout=60)).text

            results = await asyncio.gather(*(work(n, sandbox) for n, sandbox in enumerate(sandboxes)))
            assert results == [f"{n}\n{s.home}\n" for n, s in enumerate(sandboxes)]
            assert relay.connections <= 9
            await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))

    asyncio.run(main())


def test_a_server_that_allows_few_sessions(world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """More channels than the server grants: the rest goes to other connections."""
    from environments.sandboxes.ssh import connections

    monkeypatch.setattr(connections, "CHANNELS_PER_CONNECTION", 200)  # the test server allows 128

    async def main() -> None:
        async with world.sandbox() as sandbox:
            results = await asyncio.gather(*(sandbox.exec(f"sleep 1; echo {n}") for n in range(160)))
            assert [result.text for result in results] == [f"{n}\n" for n in range(160)]

    asyncio.run(main())


def test_through_a_jump_host(world: RealWorld) -> None:
    async def main() -> None:
        async with world.sandbox(ssh_jump_host=world.settings["ssh_host"]) as sandbox:
            assert (await sandbox.exec("echo jumped")).text == "jumped\n"

    asyncio.run(main())


def test_a_lost_connection_is_no_fault_of_the_agent(world: RealWorld, tmp_path: Path) -> None:
    async def main() -> None:
        async with relayed(world, tmp_path) as (relay, settings), world.backend(**settings) as backend:
            sandbox = await backend.create(PUBLIC)
            running = asyncio.ensure_future(sandbox.exec(f"sleep {SECONDS}"))
            process = await sandbox.spawn(f"sleep {SECONDS}")
            await asyncio.sleep(0.5)
            relay.cut()
            with pytest.raises(SandboxError) as caught:
                await running
            assert not isinstance(caught.value, SandboxBroken)
            assert await process.wait(10) == 137
            # The machine is still there, and so is the sandbox.
            assert await sandbox.alive()
            assert (await sandbox.exec("echo back")).text == "back\n"
            await sandbox.close()
        assert living(f"sleep {SECONDS}") == 0

    asyncio.run(main())


def test_a_removed_sandbox_is_the_agents_doing(world: RealWorld) -> None:
    async def main() -> None:
        async with world.sandbox() as sandbox:
            await sandbox.exec("rm -rf $(dirname ~)", cwd="/")
            with pytest.raises(SandboxBroken):
                await sandbox.exec("true")
            with pytest.raises(SandboxBroken):
                await sandbox.stat("x")
            assert not await sandbox.alive()

    asyncio.run(main())


def test_a_bomb_is_contained_and_killed(world: RealWorld) -> None:
    async def main() -> None:
        async with world.sandbox(SandboxSpec(resources=Resources(processes=100))) as sandbox:
            result = await sandbox.exec(f"f() {{ sleep {SECONDS} & f | f & }}; f; sleep {SECONDS}", timeout=5)
            assert result.timed_out
            assert living(f"sleep {SECONDS}") == 0
            assert (await sandbox.exec("echo calm")).text == "calm\n"

    asyncio.run(main())


def test_an_abandoned_machine_cleans_up_by_itself(world: RealWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "_GRACE", 1)

    async def main() -> None:
        backend: Any = world.make("abandoned")
        sandbox = await backend.create(PUBLIC)
        await sandbox.exec(f"setsid sleep {SECONDS} &")
        backend._host._keeping.cancel()  # as if we had died: no word, and no connection any more
        for link in list(backend._host._connections._connections):
            link.connection.abort()
        for _ in range(200):
            if living(f"sleep {SECONDS}") == 0:
                break
            await asyncio.sleep(0.1)
        assert living(f"sleep {SECONDS}") == 0
        assert not await sandbox.alive()
        await backend.close()

    asyncio.run(main())
