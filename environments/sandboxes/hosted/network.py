"""The hosts of an allow-list, sorted into what providers ask for separately."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable


def sort_hosts(hosts: Iterable[str]) -> tuple[list[str], list[str]]:
    """Addresses and networks as CIDR blocks, then names.

    >>> sort_hosts(["pypi.org", "10.0.0.0/8", "1.2.3.4"])
    (['10.0.0.0/8', '1.2.3.4/32'], ['pypi.org'])
    """
    blocks, names = [], []
    for host in hosts:
        try:
            blocks.append(str(ipaddress.ip_network(host.strip("[]"), strict=False)))
        except ValueError:
            names.append(host)
    return blocks, names
