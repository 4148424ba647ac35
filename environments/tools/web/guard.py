"""Which hosts the web and browser tools may reach: the Internet, and what the configuration names.

A model's URL, a redirect or a page's script must not reach services of this machine and its network.
The guard gives back the very addresses that a connection is to be made to, so that a name cannot mean
one address when it is checked and another one when it is used.
"""

from __future__ import annotations

from collections.abc import Iterable

from environments.sandboxes.egress.hosts import Address, AllowList, is_public, parse_address
from environments.sandboxes.egress.proxy import FilteringProxy, Refused, Resolver, resolve
from environments.sandboxes.egress.requests import Request


class Forbidden(Exception):
    """A host that the tools must not reach; the text is for the model."""


class Guard:
    """Judges hosts. ``allowed`` lists private ones as ``web_allowed_hosts`` does."""

    def __init__(self, allowed: Iterable[str] = (), *, resolver: Resolver = resolve) -> None:
        """``ConfigError`` for an entry that is no host."""
        self._allowed = AllowList(allowed)
        self._resolve = resolver

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Where a connection to this host may go, never empty.

        Raises ``Forbidden``, or ``OSError`` where the name is unknown.
        """
        literal = parse_address(host.strip("[]").partition("%")[0])
        if literal is not None:
            found = [literal]
        else:
            try:
                found = await self._resolve(host)
            except UnicodeError as error:
                raise OSError(f"{host[:100]} is no name of a host") from error
        named = literal is None and self._allowed.allows_name(host, port)
        usable = [a for a in found if named or is_public(a) or self._allowed.allows_address(a, port)]
        if not usable and found:
            raise Forbidden(f"{host}:{port} is on a private network, which these tools do not reach")
        if not usable:
            raise OSError(f"{host} has no address")
        return usable


class GuardedProxy(FilteringProxy):
    """A proxy on this machine that connects to what a guard lets pass; for programs that resolve names."""

    def __init__(self, guard: Guard) -> None:
        super().__init__(AllowList(()))
        self._guard = guard

    async def usable_addresses(self, request: Request) -> list[Address]:
        """See ``FilteringProxy.usable_addresses``."""
        try:
            return await self._guard.addresses(request.host, request.port)
        except Forbidden as error:
            raise Refused("403 Forbidden", str(error)) from error
        except OSError as error:
            raise Refused("502 Bad Gateway", f"{request.host} cannot be resolved: {error}") from error
