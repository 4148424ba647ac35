"""The network policy ``allow-list``: listed hosts are reached by the proxy, nothing else by any way."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from environments.errors import ConfigError, NotSupported
from environments.sandboxes.base import ExecResult, NetworkPolicy, Sandbox, SandboxSpec
from environments.sandboxes.egress.egress import PORT

from .conftest import World, make_world


@pytest.fixture
def servers() -> Iterator[tuple[int, int]]:
    """Two servers on the host's loopback, by their ports; each says which of the two it is."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        for name, server in (("first", one), ("second", two)):
            threading.Thread(target=_serve, args=(server, name), daemon=True).start()
        yield one.getsockname()[1], two.getsockname()[1]
        for server in (one, two):
            server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket, name: str) -> None:
    body = f"the {name} server\n"
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(answer)


async def ask(sandbox: Sandbox, *lines: str) -> ExecResult:
    """What the proxy answers to these lines, spoken by bash itself."""
    text = "".join(line + "\\r\\n" for line in lines)
    program = f"exec 3<>/dev/tcp/127.0.0.1/{PORT} && printf '{text}\\r\\n' >&3 && cat <&3"
    return await sandbox.exec(["bash", "-c", program], timeout=60)


async def get(sandbox: Sandbox, url: str) -> str:
    return (await ask(sandbox, f"GET {url} HTTP/1.1", "Host: ignored")).text


def allowing(*hosts: str) -> SandboxSpec:
    return SandboxSpec(network=NetworkPolicy("allow-list", hosts))


def test_listed_hosts_are_reached_and_no_others(filtering_world: World, servers: tuple[int, int]) -> None:
    first, second = servers

    async def body(sandbox: Sandbox) -> None:
        assert sandbox.info.network == "allow-list"
        assert "the first server" in await get(sandbox, f"http://localhost:{first}/")
        assert "the first server" in await get(sandbox, f"http://127.0.0.1:{first}/x?y")
        tunnel = await ask(sandbox, f"CONNECT localhost:{first} HTTP/1.1", "", "GET / HTTP/1.1")
        assert "200 Connection established" in tunnel.text
        assert "the first server" in tunnel.text
        for url in (f"http://localhost:{second}/", f"http://127.0.0.1:{second}/", "http://pypi.org/"):
            answer = await get(sandbox, url)
            assert answer.startswith("HTTP/1.1 403 "), answer
            assert "list of allowed hosts" in answer
        denied = await ask(sandbox, "CONNECT pypi.org:443 HTTP/1.1")
        assert denied.text.startswith("HTTP/1.1 403 ")

    filtering_world.run(body, allowing(f"localhost:{first}", f"127.0.0.1:{first}"))


def test_a_listed_name_is_no_way_to_a_private_address(
    filtering_world: World, servers: tuple[int, int]
) -> None:
    first, _ = servers

    async def body(sandbox: Sandbox) -> None:
        for host in ("localhost", "2130706433", "127.1", "0x7f.1"):
            answer = await get(sandbox, f"http://{host}:{first}/")
            assert not answer.startswith("HTTP/1.1 200"), answer
        assert (await get(sandbox, f"http://[::ffff:127.0.0.1]:{first}/")).startswith("HTTP/1.1 403 ")

    filtering_world.run(body, allowing("*:*"))


def test_there_is_no_way_but_the_proxy(filtering_world: World, servers: tuple[int, int]) -> None:
    first, _ = servers

    async def body(sandbox: Sandbox) -> None:
        direct = await sandbox.exec(["bash", "-c", f"cat </dev/tcp/127.0.0.1/{first}"], timeout=30)
        assert direct.exit_code not in (0, 124)
        for target in ("tcp/192.0.2.1/80", "udp/192.0.2.1/53", "tcp/1.1.1.1/443"):
            away = await sandbox.exec(["bash", "-c", f"echo x >/dev/{target}"], timeout=30)
            assert away.exit_code not in (0, 124)
            assert b"unreachable" in away.stderr
        assert (await sandbox.exec("getent hosts localhost.example.org", timeout=60)).exit_code != 0
        assert f"http://127.0.0.1:{PORT}" in (await sandbox.exec("echo $http_proxy $HTTPS_PROXY")).text

    filtering_world.run(body, allowing(f"127.0.0.1:{first}"))


def test_the_way_out_ends_with_its_sandbox(filtering_world: World, servers: tuple[int, int]) -> None:
    first, _ = servers

    async def main() -> None:
        async with filtering_world.backend() as backend:
            spec = filtering_world.spec(allowing(f"127.0.0.1:{first}"))
            one, two = await asyncio.gather(backend.create(spec), backend.create(spec))
            line = f"CONNECT 127.0.0.1:{first} HTTP/1.1"
            hanging = await one.spawn(
                ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{PORT}; printf '{line}\\r\\n' >&3; cat <&3"]
            )
            await one.close()
            assert await hanging.wait(30) is not None
            assert "the first server" in await get(two, f"http://127.0.0.1:{first}/")

    asyncio.run(main())


def test_a_list_that_cannot_be_understood_is_said(filtering_world: World) -> None:
    async def main() -> None:
        async with filtering_world.backend() as backend:
            for hosts in ((), ("https://pypi.org/simple",), ("a b",)):
                with pytest.raises(ConfigError, match=r"allow-list|host"):
                    await backend.create(filtering_world.spec(allowing(*hosts)))

    asyncio.run(main())


@pytest.mark.parametrize("rung", ["landlock", "none"])
def test_an_isolation_without_a_network_of_its_own_refuses(rung: str) -> None:
    world = make_world(rung)

    async def main() -> None:
        async with world.backend() as backend:
            with pytest.raises(NotSupported, match="list of hosts"):
                await backend.create(allowing("pypi.org"))

    asyncio.run(main())
