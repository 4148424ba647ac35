"""Which hosts a sandbox may reach."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

from environments.errors import ConfigError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_PORTS = frozenset({80, 443})
"""Ports of an entry that names none."""

_NAME = re.compile(r"[a-z0-9_*?-]+(\.[a-z0-9_*?-]+)*\Z")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Entry:
    """A name pattern or a block of addresses, and the ports it is for (None: all)."""

    host: str | Network
    ports: frozenset[int] | None = DEFAULT_PORTS

    def is_for(self, port: int) -> bool:
        """Whether it speaks of this port."""
        return self.ports is None or port in self.ports


class AllowList:
    """Hosts by name, pattern, address or block, each with ``:port`` or ``:*`` where it is not the web's.

    >>> AllowList(["pypi.org", "*.pythonhosted.org"]).allows_name("files.pythonhosted.org", 443)
    True

    A name never stands for an address that only machines nearby can reach: a listed name that resolves
    to such a one is refused unless the address itself is listed.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        """``ConfigError`` for what is no host."""
        self.hosts = tuple(hosts)
        entries = [parse_entry(host) for host in self.hosts]
        self._names = [(entry.host, entry) for entry in entries if isinstance(entry.host, str)]
        self._blocks = [(entry.host, entry) for entry in entries if not isinstance(entry.host, str)]

    def allows_name(self, name: str, port: int) -> bool:
        """Whether connections to a host of this name are allowed, as far as the name says."""
        plain = _plain(name)
        return any(
            entry.is_for(port) and fnmatch.fnmatchcase(plain, pattern) for pattern, entry in self._names
        )

    def allows_address(self, address: Address, port: int) -> bool:
        """Whether this very address is listed, by itself or in a block."""
        return any(entry.is_for(port) and address in block for block, entry in self._blocks)


def parse_entry(text: str) -> Entry:
    """``host``, ``host:port`` or ``host:*``; IPv6 addresses with a port stand in brackets."""
    host, ports = _split(text.strip())
    try:
        return Entry(ipaddress.ip_network(host, strict=False), ports)
    except ValueError:
        name = _plain(host)
    if not _NAME.match(name):
        raise ConfigError(
            f"{text!r} is no host of an allow-list: give a name (pypi.org), a pattern (*.pypi.org), an "
            "address or a block (10.0.0.0/8), with :port where it is not 80 or 443"
        )
    return Entry(name, ports)


def is_public(address: Address) -> bool:
    """Whether an address belongs to the Internet at large, also when it is written inside another."""
    inner = _inner(address)
    return inner.is_global and not inner.is_multicast and not inner.is_reserved


def parse_address(text: str) -> Address | None:
    """An address as it stands in a request; None for a name."""
    try:
        return _inner(ipaddress.ip_address(text))
    except ValueError:
        return None


def _inner(address: Address) -> Address:
    """The IPv4 address that an IPv6 address means by one of the ways to write it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _split(text: str) -> tuple[str, frozenset[int] | None]:
    host, colon, port = text.rpartition(":")
    if colon and (host.startswith("[") or ":" not in host):
        if port == "*":
            return _bare(host), None
        if port.isdigit() and 0 < int(port) < 65536:
            return _bare(host), frozenset({int(port)})
    return _bare(text), DEFAULT_PORTS


def _bare(host: str) -> str:
    """An IPv6 address without its brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _plain(name: str) -> str:
    """A name in the form that is compared: small letters, no last dot, international ones as ASCII."""
    name = name.rstrip(".").lower()
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode()
    except UnicodeError:  # no name at all; it matches nothing
        return name
