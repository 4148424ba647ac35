"""Life cycle and faults, alike for every hosted backend; put into a module with a ``provider``."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from real_backends import killed_run

from environments.config import HermesAgentEnvConfig
from environments.errors import ConfigError, NotSupported, SandboxError, SandboxReleased
from environments.sandboxes.base import NetworkPolicy, Resources, SandboxSpec
from environments.sandboxes.registry import create_backend
from environments.sandboxes.remote_shell.sandbox import RemoteSandbox


@dataclass
class Provider:
    """A backend and the server that its SDK talks to."""

    name: str
    server: Any
    token_variable: str

    def make(self, run_id: str = "test", **settings: Any) -> Any:
        backend = create_backend(self.name, HermesAgentEnvConfig(**settings), run_id)
        backend._creation._first_pause = 0.05
        return backend

    def run(self, body: Callable[[Any], Awaitable[None]], **settings: Any) -> None:
        """Run ``body`` on a backend; nothing may be left when it is closed."""

        async def main() -> None:
            backend = self.make(**settings)
            try:
                await body(backend)
            finally:
                await backend.close()
            assert self.server.running() == []

        asyncio.run(asyncio.wait_for(main(), 110))


def test_a_wrong_token_is_told_before_the_run(provider: Provider) -> None:
    async def main() -> None:
        backend = provider.make()
        with pytest.raises(ConfigError, match=provider.token_variable):
            await backend.check()
        await backend.close()

    provider.server.faults.wrong_token = True
    asyncio.run(main())


def test_a_missing_token_is_told_before_the_run(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def main() -> None:
        backend = provider.make()
        with pytest.raises(ConfigError, match=provider.token_variable):
            await backend.check()
        await backend.close()

    for name in [name for name in os.environ if "TOKEN" in name or "API_KEY" in name]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    asyncio.run(main())


def test_a_rate_limit_is_waited_out(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        provider.server.faults.rate_limited_creations = 3
        sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(2)))
        assert [(await sandbox.exec("echo up")).text for sandbox in sandboxes] == ["up\n", "up\n"]
        assert len(provider.server.running()) == 2
        assert provider.server.faults.rate_limited_creations == 0

    provider.run(body)


def test_a_rate_limit_without_end_is_an_error(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        backend._creation._patience = 0.5
        provider.server.faults.rate_limited_creations = 10_000
        with pytest.raises(SandboxError, match="no room") as caught:
            await backend.create(SandboxSpec())
        assert not caught.value.fatal

    provider.run(body)


def test_a_creation_whose_answer_was_lost_leaves_nothing(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        provider.server.faults.lost_creations = 1
        sandbox = await backend.create(SandboxSpec())
        assert (await sandbox.exec("echo up")).text == "up\n"
        assert len(provider.server.running()) == 1

    provider.run(body)


def test_a_missing_image_ends_the_run(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        provider.server.faults.failing_image = "example.org/missing:1"
        with pytest.raises(NotSupported, match=r"example\.org/missing:1"):
            await backend.create(SandboxSpec(image="example.org/missing:1"))

    provider.run(body)


def test_a_missing_dockerfile_ends_the_run(provider: Provider, tmp_path: Path) -> None:
    async def body(backend: Any) -> None:
        with pytest.raises(NotSupported, match="does not exist"):
            await backend.create(SandboxSpec(image=str(tmp_path)))

    provider.run(body)


def test_slow_starts_are_bounded_in_number(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        provider.server.faults.slow_start = 0.3
        provider.server.most_creating = 0
        sandboxes = await asyncio.gather(*(backend.create(SandboxSpec()) for _ in range(7)))
        assert 1 <= provider.server.most_creating <= 3
        assert len({sandbox.id for sandbox in sandboxes}) == 7

    provider.run(body, sandbox_creation_concurrency=3)


def test_a_cancelled_creation_leaves_nothing(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        await backend.check()
        provider.server.faults.slow_start = 1.0
        known = len(provider.server.sandboxes)
        creating = asyncio.ensure_future(backend.create(SandboxSpec()))
        while len(provider.server.sandboxes) == known:
            await asyncio.sleep(0.01)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        assert provider.server.running() == []

    provider.run(body)


def test_a_sandbox_that_went_is_no_fault_of_the_agent(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        sandbox = await backend.create(SandboxSpec())
        process = await sandbox.spawn("sleep 100")
        running = asyncio.ensure_future(sandbox.exec("sleep 100"))
        await asyncio.sleep(0.5)
        provider.server.end(provider.server.running()[0])
        with pytest.raises(SandboxError) as caught:
            await running
        assert type(caught.value) is SandboxError
        with pytest.raises(SandboxError):
            await sandbox.exec("true")
        with pytest.raises(SandboxError):
            await sandbox.read_bytes("/etc/hostname")
        assert await process.wait(20) == 137
        assert not await sandbox.alive()
        await sandbox.close()
        with pytest.raises(SandboxReleased):
            await sandbox.exec("true")

    provider.run(body)


def test_a_command_that_kills_all_it_can_see_does_no_harm(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        sandbox = await backend.create(SandboxSpec())
        for _ in range(3):
            result = await sandbox.exec("kill -9 -1; kill -9 $$", timeout=60)
            assert result.exit_code == 137
            assert not result.timed_out
            assert (await sandbox.exec("echo alive")).text == "alive\n"

    provider.run(body)


def test_every_operation_ends_while_all_is_stopped_again_and_again(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        sandbox = await backend.create(SandboxSpec())
        await sandbox.spawn("while :; do kill -STOP -1; done")
        await asyncio.sleep(1.0)
        begun = time.monotonic()
        with pytest.raises(SandboxError):
            await sandbox.exec("sleep 100", timeout=1)
        assert time.monotonic() - begun < 40
        for working in (sandbox.exec("sleep 100"), sandbox.write_bytes("file", b"x" * 3_000_000)):
            running = asyncio.ensure_future(working)
            await asyncio.sleep(1.0)
            running.cancel()
            begun = time.monotonic()
            await asyncio.wait({running})
            assert time.monotonic() - begun < 15
        begun = time.monotonic()
        await sandbox.close()
        assert time.monotonic() - begun < 30

    provider.run(body)


def test_sixty_four_at_once(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        async def one(number: int) -> None:
            sandbox = await backend.create(SandboxSpec(environment={"NUMBER": str(number)}))
            assert (await sandbox.exec("echo $NUMBER")).text == f"{number}\n"
            await sandbox.write_bytes("file", b"%d" % number)
            assert await sandbox.read_bytes("file") == b"%d" % number
            if number % 2:
                await sandbox.close()

        await asyncio.gather(*(one(number) for number in range(64)))
        assert len(provider.server.running()) == 32

    provider.run(body)


def test_what_a_dead_run_left_is_ended_by_the_next(provider: Provider) -> None:
    killed_run(provider.name, {}, 5)
    assert len(provider.server.running()) == 5

    async def main() -> None:
        living = provider.make("living")
        await living.create(SandboxSpec())
        assert len(provider.server.running()) == 1
        following = provider.make("following")
        await following.check()
        assert len(provider.server.running()) == 1
        await following.close()
        await living.close()
        assert provider.server.running() == []

    asyncio.run(asyncio.wait_for(main(), 100))


def test_a_run_ends_only_its_own(provider: Provider) -> None:
    async def main() -> None:
        one, other = provider.make("one"), provider.make("other")
        await one.create(SandboxSpec())
        sandbox: RemoteSandbox = await other.create(SandboxSpec())
        await one.close()
        assert (await sandbox.exec("echo here")).text == "here\n"
        await other.close()
        assert provider.server.running() == []

    asyncio.run(asyncio.wait_for(main(), 100))


def test_no_key_reaches_a_sandbox(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        sandbox = await backend.create(SandboxSpec())
        seen = (await sandbox.exec("env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline")).text
        for name, value in os.environ.items():
            if name.startswith(("MODAL_TOKEN", "DAYTONA_API_KEY")):
                assert value not in seen

    provider.run(body)


def test_no_gpu(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        with pytest.raises(NotSupported, match="GPU"):
            await backend.create(SandboxSpec(resources=Resources(gpus=1)))

    provider.run(body)


def test_the_network_is_as_asked(provider: Provider) -> None:
    look = "grep -c : /proc/net/dev"

    async def body(backend: Any) -> None:
        without = await backend.create(SandboxSpec())
        public = await backend.create(SandboxSpec(network=NetworkPolicy("public")))
        assert int((await without.exec(look)).text) < int((await public.exec(look)).text)
        assert (without.info.network, public.info.network) == ("none", "public")

    provider.run(body)


def test_output_and_input_stay_whole_side_by_side(provider: Provider) -> None:
    async def body(backend: Any) -> None:
        sandbox = await backend.create(SandboxSpec())

        async def one(number: int) -> None:
            data = bytes(range(256)) * (500 + 100 * number)
            command = "tee /dev/stderr; exit 7"
            result = await sandbox.exec(command, stdin=data, output_limit=len(data))
            assert (result.exit_code, result.stdout, result.stderr) == (7, data, data)

        for _ in range(3):
            await asyncio.gather(*(one(number) for number in range(8)))

    provider.run(body)


def shared_fault_tests() -> dict[str, Any]:
    """All tests of this module."""
    return {name: value for name, value in globals().items() if name.startswith("test_")}
