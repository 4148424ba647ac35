"""A client of the trajectory API, ours and the original: one method per endpoint, nothing retried.

What happens to a call is told by type: ``Unreachable`` (try again later), ``Rejected`` (a reply that is
no success). Policies (retry, spool, wait) belong to those who call.
"""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from environments.errors import ConfigError, HermesError

TOKEN_VARIABLE = "TRAJECTORY_API_TOKEN"
TIMEOUT = 60.0
LONGEST_REPLY = 16 << 20
_SERVER_HEADER = "X-Trajectory-Api"


class Unreachable(HermesError):
    """No answer: the connection failed, was cut, or took too long."""


class Rejected(HermesError):
    """An answer that is no success. ``retry_after`` is the server's wish, in seconds."""

    def __init__(self, status: int, text: str, retry_after: float | None = None) -> None:
        self.status, self.text, self.retry_after = status, text, retry_after
        super().__init__(f"HTTP {status}: {text[:500]}")

    @property
    def temporary(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status >= 500 or self.status < 400 or self.status in (408, 425, 429)


@dataclass(frozen=True, slots=True)
class Reply:
    """JSON of a reply, and whether our server wrote it."""

    value: dict[str, Any]
    ours: bool

    def number(self, name: str, default: float | None = None) -> float:
        """A number of the reply. Raises ``Rejected`` where it is none and there is no ``default``."""
        value = self.value.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise not_understood(f"{name!r} is {value!r:.40}, not a number")
        return value

    def objects(self, name: str) -> list[dict[str, Any]]:
        """A list of objects; empty where it is null. Raises ``Rejected`` where it is something else."""
        value = self.value.get(name) or []
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
            raise not_understood(f"{name!r} is no list of objects")
        return value


def not_understood(what: str) -> Rejected:
    """A reply of something that is perhaps no trajectory API at all, or one that is being replaced."""
    return Rejected(502, f"{what}; is this a trajectory API?")


class TrajectoryClient:
    """An async context manager. ``token`` is a bearer token, by default from ``TRAJECTORY_API_TOKEN``.

    ``longest_reply`` bounds what is read of a reply, in bytes.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        longest_reply: int = LONGEST_REPLY,
    ) -> None:
        self.url = url.rstrip("/")
        self.local = _host(self.url) in ("localhost", "127.0.0.1", "::1")
        self._longest = longest_reply
        self._token = token or os.environ.get(TOKEN_VARIABLE)
        self._timeout = timeout
        self._session: Any = None

    async def __aenter__(self) -> Self:
        import aiohttp

        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        self._session = aiohttp.ClientSession(
            headers=headers, timeout=aiohttp.ClientTimeout(total=self._timeout)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One request. Raises ``Unreachable`` and ``Rejected``."""
        import aiohttp

        sent = dict(headers or {})
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method, self.url + path, data=body, headers=sent, allow_redirects=False
            ) as reply:
                data = await self._read(reply)
                ours = _SERVER_HEADER in reply.headers
                if 300 <= reply.status < 400:  # following would turn a POST into a GET
                    raise Rejected(reply.status, f"redirects to {reply.headers.get('Location')}")
                if reply.status >= 400:
                    raise Rejected(
                        reply.status,
                        data.decode("utf-8", "replace"),
                        _seconds(reply.headers.get("Retry-After")),
                    )
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise Unreachable(f"{self.url} does not answer: {reason}") from error
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise not_understood(f"{self.url}{path} sent no JSON") from None
        if not isinstance(value, dict):
            raise not_understood(f"{self.url}{path} sent no JSON object")
        return Reply(value, ours)

    async def _read(self, reply: Any) -> bytes:
        data = bytearray()
        async for part in reply.content.iter_any():
            data += part
            if len(data) > self._longest:
                raise not_understood(f"the reply is longer than {self._longest} bytes")
        return bytes(data)

    async def get(self, path: str, body: Any = None) -> Reply:
        """GET, with a JSON body where one is given (``/status-env`` of the original needs it)."""
        return await self.call("GET", path, None if body is None else orjson.dumps(body))

    async def post(self, path: str, body: Any) -> Reply:
        """POST some JSON."""
        return await self.call("POST", path, orjson.dumps(body))

    async def send_group(self, body: bytes, key: str, *, backpressure: bool = True) -> Reply:
        """POST one encoded group. Our server takes a ``key`` only once, however often it is sent."""
        headers = {"Idempotency-Key": key}
        if backpressure:
            headers["X-Accept-Backpressure"] = "1"
        if not self.local and len(body) >= 1024:
            body = await asyncio.to_thread(_gzip, body)
            headers["Content-Encoding"] = "gzip"
        return await self.call("POST", "/scored_data", body, headers)


def _host(url: str) -> str:
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts.hostname
    except ValueError:  # a port beyond 65535
        pass
    raise ConfigError(f"the address of the trajectory API, {url!r}, is no URL such as http://localhost:8000")


def _gzip(body: bytes) -> bytes:
    return zlib.compress(body, 1, wbits=zlib.MAX_WBITS | 16)


def _seconds(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None
