"""The way out of one sandbox: its port, its variables, its proxy."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from environments.errors import ConfigError
from environments.sandboxes.base import NetworkPolicy
from environments.sandboxes.egress.hosts import AllowList
from environments.sandboxes.egress.proxy import FilteringProxy

PORT = 3128
"""Where the proxy is found inside, on the loopback interface."""

_NAMES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_NOT_FOR = "localhost,127.0.0.1,::1"


def variables(policy: NetworkPolicy) -> Mapping[str, str]:
    """Variables by which programs find the proxy; none where the policy needs no proxy."""
    if policy.mode != "allow-list":
        return {}
    address = f"http://127.0.0.1:{PORT}"
    return {**dict.fromkeys(_NAMES, address), "no_proxy": _NOT_FOR, "NO_PROXY": _NOT_FOR}


def check(policy: NetworkPolicy) -> None:
    """``ConfigError`` where the list of hosts is missing or cannot be understood."""
    if policy.mode != "allow-list":
        return
    if not policy.hosts:
        raise ConfigError(
            "the network allow-list names no host: set --env.sandbox_allowed_hosts, or the network none"
        )
    AllowList(policy.hosts)


def limitations(policy: NetworkPolicy) -> list[str]:
    """What a sandbox with such a network does not do."""
    if policy.mode != "allow-list":
        return []
    return [
        "the allowed hosts are reached by programs that heed http_proxy and https_proxy, and by no others"
    ]


def start(policy: NetworkPolicy, listener: socket.socket) -> FilteringProxy:
    """A proxy that serves a sandbox by a socket listening inside its network."""
    proxy = FilteringProxy(AllowList(policy.hosts))
    proxy.listen(listener)
    return proxy
