"""One HTTP exchange with a model server: send a request, get the reply's JSON or the right error.

``aiohttp`` is imported at the first request; one client serves all servers of a manager.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from environments.errors import ServerUnavailable
from environments.inference.faults import (
    NoCompletion,
    Unreachable,
    error_from_payload,
    error_from_reply,
    no_answer,
    scrub,
)
from environments.inference.replies import MalformedReply, parse_json
from environments.inference.streaming import EventReader, ReplyAssembler

if TYPE_CHECKING:
    import aiohttp

CONNECT_TIMEOUT = 20.0
"""Seconds until a server that does not take the connection counts as unreachable."""

IDLE_TIMEOUT = 300.0
"""Seconds without a byte until a streamed reply counts as cut. Keep-alive comments are bytes."""


@dataclass(frozen=True, slots=True)
class Target:
    """A server as the network sees it. ``key`` never appears in errors."""

    label: str
    base_url: str
    key: str = field(repr=False)
    private: bool

    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return headers


@dataclass(frozen=True, slots=True)
class Exchange:
    """A good reply, and when its first token came (None without streaming)."""

    payload: dict[str, Any]
    first_token_at: float | None = None


class Transport:
    """The HTTP client. ``connect_timeout`` and ``idle_timeout`` are seconds."""

    def __init__(
        self, *, connect_timeout: float = CONNECT_TIMEOUT, idle_timeout: float = IDLE_TIMEOUT
    ) -> None:
        self._connect_timeout = connect_timeout
        self._idle_timeout = idle_timeout
        self._client: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post(self, target: Target, url: str, body: dict[str, Any], budget: float) -> Exchange:
        """Send a request and read its reply within ``budget`` seconds. Raises ``ModelError``."""
        streamed = bool(body.get("stream"))
        data = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
        client = self._open_client()
        with _network_errors(target, budget):
            async with (
                asyncio.timeout(budget),
                client.post(
                    url,
                    data=data,
                    headers=target.headers(),
                    timeout=self._timeout(streamed),
                    allow_redirects=False,  # the key must not follow to another host
                    proxy=_proxy(target),
                ) as response,
            ):
                if response.status >= 300:
                    text = scrub((await response.read()).decode("utf-8", "replace"), target.key)
                    raise error_from_reply(target.label, response.status, text, response.headers)
                if response.content_type == "text/event-stream":
                    return await _read_stream(target, response)
                return _read_whole(target, await response.read())

    async def models(self, target: Target, root: str | None = None) -> list[dict[str, Any]]:
        """What the server says of its models, each with an ``id``; empty where it does not say.

        ``root`` is the server's address without the API's path, where that is known to be ``/v1``.
        """
        url = f"{target.base_url}/models" if root is None else f"{root}/v1/models"
        client = self._open_client()
        try:
            with _network_errors(target, CONNECT_TIMEOUT):
                async with (
                    asyncio.timeout(CONNECT_TIMEOUT),
                    client.get(url, headers=target.headers(), proxy=_proxy(target)) as response,
                ):
                    payload = parse_json(await response.read())
        except (ServerUnavailable, MalformedReply):
            return []
        entries = payload.get("data") if isinstance(payload, dict) else None
        return [e for e in entries or [] if isinstance(e, dict) and "id" in e]

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _open_client(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._client is None or self._client.closed or self._loop is not loop:
            import aiohttp

            # Our own slots are the limit; a second one in the client would queue out of sight.
            connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=60)
            self._client = aiohttp.ClientSession(connector=connector, auto_decompress=True)
            self._loop = loop
        return self._client

    def _timeout(self, streamed: bool) -> aiohttp.ClientTimeout:
        import aiohttp

        return aiohttp.ClientTimeout(
            total=None,
            sock_connect=self._connect_timeout,
            sock_read=self._idle_timeout if streamed else None,
        )


async def _read_stream(target: Target, response: aiohttp.ClientResponse) -> Exchange:
    """The reply of an event stream, whole or not at all."""
    import aiohttp

    reader, assembler = EventReader(), ReplyAssembler()
    first_token_at: float | None = None
    try:
        async for chunk in response.content.iter_any():
            done = _take_events(target, reader.feed(chunk), assembler)
            if first_token_at is None and assembler.started:
                first_token_at = time.time()
            if done:
                break
        else:
            _take_events(target, reader.finish(), assembler)
    except aiohttp.ClientPayloadError:
        if not assembler.finished:
            raise
    if not assembler.finished:
        raise no_answer(target.label, "the stream ended before the reply was complete")
    return Exchange(assembler.build(), first_token_at)


def _take_events(target: Target, events: list[bytes], assembler: ReplyAssembler) -> bool:
    """Add events to the reply; True at the mark that ends the stream."""
    for event in events:
        if event.strip() == b"[DONE]":
            return True
        try:
            chunk = parse_json(event)
        except MalformedReply:
            raise no_answer(
                target.label, "an event of the stream is not JSON", body=_text(target, event)
            ) from None
        if isinstance(chunk, dict):
            _refuse_error(target, chunk)
            assembler.add(chunk)
    return False


def _read_whole(target: Target, body: bytes) -> Exchange:
    if body.lstrip().startswith(b"data:"):  # a stream that was not announced as one
        reader, assembler = EventReader(), ReplyAssembler()
        if not _take_events(target, reader.feed(body), assembler):
            _take_events(target, reader.finish(), assembler)
        return Exchange(assembler.build())
    try:
        payload = parse_json(body)
    except MalformedReply as problem:
        raise _no_completion(target, str(problem), body) from None
    if not isinstance(payload, dict):
        raise _no_completion(target, "the reply is not a JSON object", body)
    _refuse_error(target, payload)
    return Exchange(payload)


def _no_completion(target: Target, what: str, body: bytes) -> NoCompletion:
    error = no_answer(target.label, what, body=_text(target, body))
    return NoCompletion(str(error), body=error.body)


def _refuse_error(target: Target, payload: dict[str, Any]) -> None:
    """Raise for an error inside a reply whose status said that all was well."""
    choices = payload.get("choices")
    inner = (
        [c for c in choices if isinstance(c, dict) and c.get("error")] if isinstance(choices, list) else []
    )
    found = payload if payload.get("error") or payload.get("object") == "error" else next(iter(inner), None)
    if found is not None:
        clean = orjson.loads(scrub(orjson.dumps(found).decode(), target.key))
        raise error_from_payload(target.label, clean)
    if isinstance(choices, list) and any(
        isinstance(c, dict) and c.get("finish_reason") == "error" for c in choices
    ):
        raise no_answer(target.label, "the reply ended in an error that the server does not name")


@contextmanager
def _network_errors(target: Target, budget: float) -> Iterator[None]:
    """Turn errors of the network into ours."""
    import aiohttp

    try:
        yield
    except aiohttp.ClientConnectorError as error:
        raise Unreachable(f"{target.label}: no connection: {scrub(str(error), target.key)}") from None
    except aiohttp.ConnectionTimeoutError:
        raise Unreachable(f"{target.label}: no connection within {CONNECT_TIMEOUT:g} s") from None
    except aiohttp.SocketTimeoutError:
        raise no_answer(target.label, "the stream fell silent") from None
    except TimeoutError:
        raise no_answer(target.label, f"no reply within the {budget:.0f} s that were left") from None
    except (aiohttp.ClientError, OSError) as error:
        said = scrub(str(error), target.key) or type(error).__name__
        raise no_answer(target.label, f"the connection broke: {said}") from None


def _proxy(target: Target) -> str | None:
    """The proxy that the environment names, for servers outside."""
    if target.private:
        return None
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(target.base_url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _text(target: Target, data: bytes) -> str:
    return scrub(data.decode("utf-8", "replace"), target.key)
