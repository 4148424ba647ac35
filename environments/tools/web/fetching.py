"""Getting a page: each hop checked, size and time bounded, robots.txt heeded."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from environments.tools.asking import USER_AGENT
from environments.tools.web.guard import Forbidden, Guard
from environments.tools.web.robots import ALL, LONGEST, NOTHING, Robots, parse

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, TCPConnector
    from yarl import URL

MOST_REDIRECTS = 10

_PART = 1 << 16
_ACCEPT = "text/html,application/xhtml+xml,application/pdf;q=0.9,text/plain;q=0.9,*/*;q=0.5"
_REDIRECTS = (301, 302, 303, 307, 308)
_PASSING = (408, 425, 429)
_MOST_SITES = 10_000


class FetchError(Exception):
    """A page that cannot be had. ``lasting``: it would be the same a moment later."""

    def __init__(self, message: str, *, lasting: bool) -> None:
        self.lasting = lasting
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page as it came. ``url`` is where it was found in the end."""

    url: str
    content_type: str
    charset: str | None
    body: bytes
    cut: bool
    """Whether only the start was read."""


class Fetcher:
    """Fetches pages for one run. Made inside the event loop; ``close`` at the end."""

    def __init__(self, guard: Guard, *, timeout: float, max_bytes: int, robots: bool) -> None:
        from aiohttp import TCPConnector

        self._guard = guard
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._heed_robots = robots
        self._robots: dict[str, Robots] = {}
        # No cache of names: the guard judges every connection anew, and its answer is what is used.
        self._connector: TCPConnector = TCPConnector(
            resolver=guarded_resolver(guard), use_dns_cache=False, limit=32, limit_per_host=8
        )

    async def close(self) -> None:
        """Close connections."""
        await self._connector.close()

    async def fetch(self, address: str) -> Fetched:
        """The page at an address. Raises ``FetchError``."""
        from aiohttp import ClientError, ClientSession, InvalidURL

        url = parse_url(address)
        try:
            # A session per page: cookies of one rollout are nothing to another.
            async with (
                asyncio.timeout(self._timeout),
                ClientSession(
                    connector=self._connector, connector_owner=False, headers={"User-Agent": USER_AGENT}
                ) as session,
            ):
                return await self._follow(session, url)
        except TimeoutError:
            raise FetchError(f"no answer within {self._timeout:g} s", lasting=False) from None
        except Forbidden as error:
            raise FetchError(str(error), lasting=True) from None
        except InvalidURL as error:
            raise FetchError(f"not a URL: {error}", lasting=True) from None
        except (ClientError, OSError, ValueError) as error:
            raise FetchError(_reason(error), lasting=False) from None

    async def _follow(self, session: ClientSession, url: URL) -> Fetched:
        for _ in range(MOST_REDIRECTS + 1):
            await self._check(session, url)
            async with session.get(url, allow_redirects=False, headers={"Accept": _ACCEPT}) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or not location:
                    return await self._read(response)
            url = joined(url, location)
        raise FetchError(f"more than {MOST_REDIRECTS} redirects", lasting=True)

    async def _check(self, session: ClientSession, url: URL) -> None:
        """The guard's word on a hop, and robots.txt's. The connector asks the guard again for names."""
        await self._guard.addresses(url.host or "", url.port or 80)
        if self._heed_robots and not (await self._rules(session, url)).allows(url.raw_path_qs):
            raise FetchError(f"{url.host} asks programs in robots.txt not to read this page", lasting=True)

    async def _rules(self, session: ClientSession, url: URL) -> Robots:
        site = str(url.origin())
        if site not in self._robots:
            rules = await self._read_robots(session, url.origin().with_path("/robots.txt"))
            if len(self._robots) >= _MOST_SITES:
                self._robots.clear()
            self._robots[site] = rules
        return self._robots[site]

    async def _read_robots(self, session: ClientSession, url: URL) -> Robots:
        for _ in range(MOST_REDIRECTS):
            await self._guard.addresses(url.host or "", url.port or 80)
            async with session.get(url, allow_redirects=False) as response:
                location = response.headers.get("Location")
                if response.status in _REDIRECTS and location:
                    url = joined(url, location)
                    continue
                if response.status >= 500:
                    return NOTHING
                if response.status != 200:
                    return ALL
                body, _ = await _start(response, LONGEST)
                return parse(body.decode("utf-8", "replace"))
        return ALL

    async def _read(self, response: ClientResponse) -> Fetched:
        status = response.status
        if status >= 400:
            lasting = status < 500 and status not in _PASSING
            raise FetchError(f"HTTP status {status} {response.reason or ''}".strip(), lasting=lasting)
        body, cut = await _start(response, self._max_bytes)
        kind = response.content_type if "Content-Type" in response.headers else ""
        return Fetched(str(response.url), kind.lower(), response.charset, body, cut)


def parse_url(address: str) -> URL:
    """A web address, ``https`` where it has no scheme. Raises ``FetchError``."""
    from yarl import URL

    text = address.strip()
    if "://" not in text and not text.lower().startswith(("data:", "javascript:", "mailto:", "about:")):
        text = f"https://{text.lstrip('/')}"
    try:
        url = URL(text)
        port = url.port
    except ValueError as error:
        raise FetchError(f"not a URL: {error}", lasting=True) from None
    if url.scheme not in ("http", "https"):
        raise FetchError(f"only http and https addresses can be read, not {url.scheme}:", lasting=True)
    if not url.host or not port or any(character.isspace() for character in url.host):
        raise FetchError("the URL names no host", lasting=True)
    return url.with_fragment(None)


def joined(url: URL, location: str) -> URL:
    """Where a redirect leads. Raises ``FetchError``."""
    from yarl import URL

    try:
        return parse_url(str(url.join(URL(location, encoded=True))))
    except ValueError as error:
        raise FetchError(f"a redirect leads to no URL: {error}", lasting=True) from None


def guarded_resolver(guard: Guard) -> Any:
    """A resolver for aiohttp that knows only what the guard lets pass."""
    from aiohttp.abc import AbstractResolver, ResolveResult

    class GuardedResolver(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            return [
                ResolveResult(
                    hostname=host,
                    host=str(address),
                    port=port,
                    family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                    proto=0,
                    flags=socket.AI_NUMERICHOST,
                )
                for address in await guard.addresses(host, port)
            ]

        async def close(self) -> None:
            return None

    return GuardedResolver()


async def _start(response: ClientResponse, limit: int) -> tuple[bytes, bool]:
    """The first ``limit`` bytes of a body, and whether there is more."""
    body = bytearray()
    async for part in response.content.iter_chunked(_PART):
        body += part
        if len(body) > limit:
            return bytes(body[:limit]), True
    return bytes(body), False


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return f"the page cannot be reached: {text[:300]}"
