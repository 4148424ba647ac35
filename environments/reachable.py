"""A look at model servers on this machine before a run: one that is not there is said at once.

Only a connection is opened and closed, and only to loopback; what other hosts can do is learnt from
real calls.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from environments.errors import RunAborted

PATIENCE = 3.0
"""Seconds for a server on this machine to accept a connection."""


async def check_local_servers(urls: Iterable[str]) -> None:
    """Raise ``RunAborted`` where every server is on this machine and none accepts a connection."""
    addresses = [(url, urlsplit(url)) for url in urls]
    if not addresses or not all(_is_loopback(parts.hostname) for _, parts in addresses):
        return
    refusals = []
    for url, parts in addresses:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            async with asyncio.timeout(PATIENCE):
                _, writer = await asyncio.open_connection(parts.hostname, port)
        except (OSError, TimeoutError) as error:
            refusals.append(f"{url}: {error.__class__.__name__}")
            continue
        writer.close()
        return
    raise RunAborted(
        f"no model server answers ({'; '.join(refusals)}); start it, or name another with --openai.base_url"
    )


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
