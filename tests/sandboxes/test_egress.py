"""The parts of the filtering proxy: its list, its reading of requests, and what it connects to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import ConfigError
from environments.sandboxes.egress.hosts import Address, AllowList, is_public, parse_address
from environments.sandboxes.egress.proxy import MOST_CONNECTIONS, FilteringProxy
from environments.sandboxes.egress.requests import BadRequest, Request, body, parse


@pytest.mark.parametrize(
    ("entry", "host", "port", "allowed"),
    [
        ("pypi.org", "pypi.org", 443, True),
        ("pypi.org", "PyPI.org.", 80, True),
        ("pypi.org", "pypi.org", 22, False),
        ("pypi.org", "pypi.org.evil.example", 443, False),
        ("pypi.org", "xpypi.org", 443, False),
        ("*.pypi.org", "a.b.pypi.org", 443, True),
        ("*.pypi.org", "pypi.org", 443, False),
        ("*.pypi.org", "evilpypi.org", 443, False),
        ("github.com:22", "github.com", 22, True),
        ("github.com:22", "github.com", 443, False),
        ("github.com:*", "github.com", 9418, True),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("xn--bcher-kva.example", "BÜCHER.example", 443, True),
    ],
)
def test_names(entry: str, host: str, port: int, allowed: bool) -> None:
    assert AllowList([entry]).allows_name(host, port) is allowed


@pytest.mark.parametrize(
    ("entry", "address", "port", "allowed"),
    [
        ("10.0.0.0/8", "10.1.2.3", 443, True),
        ("10.0.0.0/8:5432", "10.1.2.3", 5432, True),
        ("10.0.0.0/8", "11.1.2.3", 443, False),
        ("1.2.3.4", "::ffff:1.2.3.4", 80, True),
        ("[2001:db8::1]:8080", "2001:db8::1", 8080, True),
        ("2001:db8::/32", "2001:db8::5", 443, True),
        ("1.2.3.4", "1.2.3.5", 80, False),
    ],
)
def test_addresses(entry: str, address: str, port: int, allowed: bool) -> None:
    parsed = parse_address(address)
    assert parsed is not None
    assert AllowList([entry]).allows_address(parsed, port) is allowed


@pytest.mark.parametrize(
    "entry", ["", "http://x", "a/b", "a b", "user@host", "host:0", "host:99999", "..", "[x"]
)
def test_what_is_no_host(entry: str) -> None:
    with pytest.raises(ConfigError):
        AllowList([entry])


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "224.0.0.1"),
        *("100.64.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:10.0.0.1"),
        *("64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
def test_private_addresses_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


def test_public_addresses() -> None:
    assert all(
        is_public(ipaddress.ip_address(text)) for text in ("1.1.1.1", "2606:4700::1", "::ffff:1.1.1.1")
    )


def test_requests_are_written_anew() -> None:
    head = (
        b"POST http://user:secret@Example.org:8080/a%20b?c=d HTTP/1.1\r\nHost: elsewhere\r\n"
        b"Proxy-Authorization: x\r\nConnection: keep-alive\r\nX-Own:  kept \r\nContent-Length: 3\r\n\r\n"
    )
    request = parse(head)
    assert (request.host, request.port, request.length) == ("example.org".replace("e", "E", 1), 8080, 3)
    assert request.head == (
        b"POST /a%20b?c=d HTTP/1.1\r\nHost: Example.org:8080\r\nX-Own: kept\r\nContent-Length: 3\r\n"
        b"Connection: close\r\n\r\n"
    )
    assert parse(b"CONNECT [::1]:443 HTTP/1.1\r\n\r\n") == Request("::1", 443)


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET https://x/ HTTP/1.1\r\n\r\n",
        b"GET http:///x HTTP/1.1\r\n\r\n",
        b"CONNECT x HTTP/1.1\r\n\r\n",
        b"CONNECT x:0 HTTP/1.1\r\n\r\n",
        b"CONNECT a b:1 HTTP/1.1\r\n\r\n",
        b"GET http://x/ HTTP/2\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\nBroken\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\n folded: x\r\n\r\n",
        b"POST http://x/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST http://x/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST http://x/ HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST http://x/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_requests_that_are_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse(head)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for head in (data, b"GET http://" + data, b"CONNECT " + data + b" HTTP/1.1\r\n\r\n"):
        try:
            request = parse(head)
        except BadRequest:
            continue
        assert 0 < request.port < 65536
        assert b"\r\n\r\n" not in (request.head or b"").removesuffix(b"\r\n\r\n")


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5))
def test_bodies_in_chunks_end_where_they_end(parts: list[bytes]) -> None:
    async def main() -> None:
        reader = asyncio.StreamReader()
        sent = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        reader.feed_data(sent + b"GET http://evil/ HTTP/1.1\r\n\r\n")
        passed = b"".join([piece async for piece in body(Request("x", 80, b"", None), reader)])
        assert passed == b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"

    asyncio.run(main())


def test_a_body_in_broken_chunks_is_refused() -> None:
    async def main() -> None:
        for sent in (b"zz\r\n", b"2\r\nabc\r\n", b"\r\n", b"-1\r\n"):
            reader = asyncio.StreamReader()
            reader.feed_data(sent)
            reader.feed_eof()
            with pytest.raises(BadRequest):
                _ = [piece async for piece in body(Request("x", 80, b"", None), reader)]

    asyncio.run(main())


Client = Callable[[bytes], Awaitable[bytes]]


def with_proxy(
    hosts: list[str], names: dict[str, list[str]], use: Callable[[Client, int], Awaitable[None]]
) -> None:
    """Run ``use`` with a client of a proxy, and the port of a server on the loopback that echoes."""

    async def resolver(name: str) -> list[Address]:
        if name not in names:
            raise OSError("no such name")
        return [ipaddress.ip_address(text) for text in names[name]]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + await reader.readuntil(b"\r\n\r\n"))
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        proxy = FilteringProxy(
            AllowList([host.replace("PORT", str(port)) for host in hosts]), resolver=resolver
        )
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        proxy.listen(listener)

        async def client(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(request.replace(b"PORT", b"%d" % port))
            await writer.drain()
            try:
                return await reader.read()
            finally:
                writer.close()

        try:
            async with asyncio.timeout(60):
                await use(client, port)
        finally:
            await proxy.close()
            server.close()

    asyncio.run(main())


def test_a_name_is_resolved_by_the_proxy_alone() -> None:
    async def use(client: Client, port: int) -> None:
        answer = await client(b"GET http://service.example:PORT/a HTTP/1.1\r\nHost: other\r\n\r\n")
        assert b"GET /a HTTP/1.1\r\nHost: service.example:%d\r\n" % port in answer
        assert (await client(b"GET http://gone.example:PORT/ HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 502")
        assert b"private" in await client(b"GET http://near.example:PORT/ HTTP/1.1\r\n\r\n")

    names = {"service.example": ["127.0.0.1"], "near.example": ["192.168.0.1", "10.0.0.1"]}
    with_proxy(["*.example:PORT", "127.0.0.1:PORT"], names, use)


def test_what_goes_wrong_is_told_to_the_client() -> None:
    async def use(client: Client, port: int) -> None:
        assert (await client(b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")
        assert (await client(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000)).startswith((b"HTTP/1.1 431", b""))
        assert (await client(b"CONNECT other.example:1 HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 403")
        closed = await client(b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n")
        assert closed.startswith(b"HTTP/1.1 502")

    with_proxy(["127.0.0.1:1"], {}, use)


def test_more_connections_than_it_serves_wait_for_their_turn() -> None:
    async def use(client: Client, port: int) -> None:
        request = b"GET http://127.0.0.1:PORT/ HTTP/1.1\r\n\r\n"
        answers = await asyncio.gather(*(client(request) for _ in range(2 * MOST_CONNECTIONS)))
        assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)

    with_proxy(["127.0.0.1:PORT"], {}, use)
