"""Where to connect and as whom: configuration, then environment variables, then ``~/.ssh/config``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.errors import ConfigError

if TYPE_CHECKING:
    from environments.config import HermesAgentEnvConfig

_ADDRESS = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[^\]\s]+\]|[^:@\s\[\]]+)(?::(?P<port>\d+))?\Z")

KEEPALIVE_INTERVAL = 15
KEEPALIVE_COUNT = 4


@dataclass(frozen=True, slots=True)
class Address:
    """One machine; what is None comes from ``~/.ssh/config`` or is the user's and SSH's default."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        name = f"{self.user}@{self.host}" if self.user else self.host
        return f"{name}:{self.port}" if self.port else name


@dataclass(frozen=True, slots=True)
class SSHOptions:
    """Everything that a connection needs."""

    target: Address
    jumps: tuple[Address, ...] = ()
    key: str | None = None
    known_hosts: str | None = None

    def for_asyncssh(self) -> dict[str, Any]:
        """Options that the target and all jump hosts share; what is unset keeps asyncssh's default:
        ``~/.ssh/config``, the agent and the user's keys, ``~/.ssh/known_hosts``."""
        options: dict[str, Any] = {
            "keepalive_interval": KEEPALIVE_INTERVAL,
            "keepalive_count_max": KEEPALIVE_COUNT,
            "agent_forwarding": False,
        }
        if self.key is not None:
            options["client_keys"] = [self.key]
        if self.known_hosts is not None:
            options["known_hosts"] = self.known_hosts
        return options


def read_options(config: HermesAgentEnvConfig, environment: Mapping[str, str] | None = None) -> SSHOptions:
    """The options of a run. ``ConfigError`` where the host is missing or a file does not exist."""
    variables = os.environ if environment is None else environment

    def setting(value: str | None, variable: str) -> str | None:
        return value or variables.get(variable) or None

    host = setting(config.ssh_host, "TERMINAL_SSH_HOST")
    if host is None:
        raise ConfigError(
            "the ssh backend needs a host: set --env.ssh_host (or the variable TERMINAL_SSH_HOST)"
        )
    target = parse_address(host, "ssh_host")
    port = config.ssh_port or _port(variables.get("TERMINAL_SSH_PORT"))
    return SSHOptions(
        target=Address(
            target.host, setting(config.ssh_user, "TERMINAL_SSH_USER") or target.user, port or target.port
        ),
        jumps=tuple(
            parse_address(part.strip(), "ssh_jump_host")
            for part in (config.ssh_jump_host or "").split(",")
            if part.strip()
        ),
        key=_existing(setting(config.ssh_key, "TERMINAL_SSH_KEY"), "ssh_key"),
        known_hosts=_existing(config.ssh_known_hosts, "ssh_known_hosts"),
    )


def parse_address(text: str, where: str) -> Address:
    """``[user@]host[:port]``; an IPv6 address stands in brackets where a port follows.

    >>> parse_address("me@box:2222", "ssh_host")
    Address(host='box', user='me', port=2222)
    """
    found = _ADDRESS.match(text)
    if found is None:
        if text.count(":") > 1 and not re.search(r"[\s@\[\]]", text):
            return Address(text)
        raise ConfigError(f"env.{where}: {text!r} is not of the form [user@]host[:port]")
    port = _port(found["port"])
    return Address(found["host"].strip("[]"), found["user"], port)


def _port(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise ConfigError(f"{text!r} is not a port for SSH")
    return int(text)


def _existing(path: str | None, where: str) -> str | None:
    if path is None:
        return None
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(f"env.{where}: there is no file {path}")
    return str(file)
