"""What ``sandbox_exec.py`` compares each backend with."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from environments.sandboxes.singularity.engine import Engine
from environments.sandboxes.ssh.options import parse_address

Call = Callable[[], Awaitable[Any]]


@dataclass
class Peer:
    """One backend and what one would use without it."""

    name: str
    backend: str
    settings: dict[str, Any]
    call_name: str
    calls: Callable[[Any, Any], AbstractAsyncContextManager[Call]]
    """Given a sandbox and its backend: runs ``true`` there in the bare way."""
    create_name: str = ""
    create: Call | None = field(default=None)


async def run_program(*arguments: str, environment: dict[str, str] | None = None) -> None:
    """Run a program, which must succeed."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    _, message = await process.communicate()
    if process.returncode:
        sys.exit(f"{arguments[0]} failed: {message.decode()}")


@contextmanager
def local() -> Iterator[Peer]:
    """A plain subprocess, without any isolation."""

    @asynccontextmanager
    async def calls(sandbox: Any, backend: Any) -> AsyncIterator[Call]:
        yield lambda: run_program("true")

    yield Peer("local", "local", {}, "asyncio subprocess", calls)


def engine(name: str, variable: str) -> Callable[[], AbstractContextManager[Peer | str]]:
    """An engine with Docker's interface, beside its command line."""

    @contextmanager
    def made() -> Iterator[Peer | str]:
        program, host = shutil.which("docker"), os.environ.get(variable)
        if program is None or not host:
            yield f"{variable} is not set, or there is no docker program"
            return
        image = os.environ.get("HERMES_TEST_DOCKER_IMAGE", "sandbox/debian")
        os.environ["DOCKER_HOST"] = host

        @asynccontextmanager
        async def calls(sandbox: Any, backend: Any) -> AsyncIterator[Call]:
            yield lambda: run_program(program, "exec", sandbox.id, "true")

        async def create() -> None:
            container = f"perf-{os.getpid()}-{id(asyncio.current_task())}"
            await run_program(
                *(program, "run", "-d", "--network", "none", "--name", container, image, "sleep", "100")
            )
            await run_program(program, "rm", "-f", container)

        settings = {"docker_image": image}
        yield Peer(name, "docker", settings, "docker exec", calls, "docker run and rm", create)

    return made


@contextmanager
def ssh() -> Iterator[Peer | str]:
    """The program ssh, with a control master."""
    text = os.environ.get("HERMES_TEST_SSH")
    if not text:
        yield "HERMES_TEST_SSH is not set"
        return
    name, _, query = text.partition("?")
    options = {key: values[-1] for key, values in parse_qs(query).items()}
    address = parse_address(name, "ssh_host")
    target = f"{address.user}@{address.host}" if address.user else address.host

    @asynccontextmanager
    async def calls(sandbox: Any, backend: Any) -> AsyncIterator[Call]:
        with tempfile.TemporaryDirectory() as directory:
            arguments = ["-o", f"ControlPath={directory}/master", "-p", str(address.port or 22)]
            if "key" in options:
                arguments += ["-i", options["key"]]
            if "known_hosts" in options:
                arguments += ["-o", f"UserKnownHostsFile={options['known_hosts']}"]
            master = await asyncio.create_subprocess_exec("ssh", "-MN", *arguments, target)
            try:
                while not await asyncio.to_thread(Path(directory, "master").exists):
                    await asyncio.sleep(0.05)
                yield lambda: run_program("ssh", *arguments, target, "true")
            finally:
                master.terminate()
                await master.wait()

    settings = {f"ssh_{key}": value for key, value in options.items()}
    yield Peer(
        *(
            "ssh",
            "ssh",
            {"ssh_host": name, "sandbox_network": "public", **settings},
            "ssh, control master",
            calls,
        )
    )


@contextmanager
def singularity() -> Iterator[Peer | str]:
    """The engine's own program."""
    image = os.environ.get("HERMES_TEST_SINGULARITY_IMAGE")
    if not image:
        yield "HERMES_TEST_SINGULARITY_IMAGE is not set"
        return
    program = Engine.find().path
    rights = ["--no-privs"] if os.geteuid() == 0 else []

    @asynccontextmanager
    async def calls(sandbox: Any, backend: Any) -> AsyncIterator[Call]:
        instance = f"instance://{sandbox.id}"
        yield lambda: run_program(program, "--silent", "exec", *rights, "--pwd", "/", instance, "true")

    async def create() -> None:
        name = f"perf-{os.getpid()}"
        await run_program(
            *(program, "--silent", "instance", "start", *rights, "--containall", "--writable-tmpfs"),
            *("--net", "--network", "none", image, name),
        )
        await run_program(program, "--silent", "instance", "stop", "-s", "KILL", name)

    settings = {"singularity_image": image}
    yield Peer(
        "singularity",
        "singularity",
        settings,
        "apptainer exec",
        calls,
        "apptainer instance start, stop",
        create,
    )


_NO_SDK = "the SDK is not installed"


@contextmanager
def _local_server(name: str, kind: str, **variables: str) -> Iterator[str | None]:
    """The server of the tests that a hosted provider's SDK is pointed to, or None without that SDK.

    ``variables`` name it and its keys to the SDK, with ``{url}`` for the server's address.
    """
    if importlib.util.find_spec(name) is None:
        yield None
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    server = getattr(importlib.import_module(f"servers.{name}_server"), kind)()
    server.start()
    os.environ |= {key: value.format(url=server.url) for key, value in variables.items()}
    try:
        yield server.url
    finally:
        server.stop()


@contextmanager
def modal() -> Iterator[Peer | str]:
    """Modal's SDK, on the local server of the tests."""

    @asynccontextmanager
    async def calls(sandbox: Any, backend: Any) -> AsyncIterator[Call]:
        bare = sandbox._machine._sandbox

        async def call() -> None:
            process = await bare.exec.aio("true")
            await process.stdout.read.aio()
            await process.stderr.read.aio()
            await process.wait.aio()

        yield call

    keys = {"MODAL_TOKEN_ID": "ak-x", "MODAL_TOKEN_SECRET": "as-x"}
    with _local_server("modal", "ModalServer", MODAL_SERVER_URL="{url}", **keys) as url:
        yield Peer("modal", "modal", {}, "Sandbox.exec of the SDK", calls) if url else _NO_SDK


@contextmanager
def daytona() -> Iterator[Peer | str]:
    """Daytona's SDK, on the local server of the tests."""

    @asynccontextmanager
    async def calls(sandbox: Any, backend: Any) -> AsyncIterator[Call]:
        bare = sandbox._machine._sandbox
        yield lambda: bare.process.exec("true")

    keys = {"DAYTONA_API_KEY": "x", "DAYTONA_TARGET": "us"}
    with _local_server("daytona", "DaytonaServer", DAYTONA_API_URL="{url}", **keys) as url:
        yield Peer("daytona", "daytona", {}, "process.exec of the SDK", calls) if url else _NO_SDK


PEERS: dict[str, Callable[[], AbstractContextManager[Peer | str]]] = {
    "local": local,
    "docker": engine("docker", "HERMES_TEST_DOCKER_HOST"),
    "podman": engine("podman", "HERMES_TEST_PODMAN_HOST"),
    "ssh": ssh,
    "singularity": singularity,
    "modal": modal,
    "daytona": daytona,
}
