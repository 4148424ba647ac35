"""MCP servers as the configuration names them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from environments.errors import ConfigError, suggestion

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}\Z")
_KEYS = ("command", "args", "env", "cwd", "url", "headers", "shared", "timeout", "start_timeout")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """One server: a program (``command``) or an address (``url``), never both. Times are seconds."""

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the program beside the few it always has (PATH, HOME, ...)."""
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    shared: bool = False
    """One server for the whole run instead of one for each rollout."""
    timeout: float = 60.0
    """Of one call."""
    start_timeout: float = 60.0


def parse_servers(servers: Mapping[str, Any]) -> list[ServerSettings]:
    """The servers of ``mcp_servers``. ``ConfigError`` says which entry is wrong and how."""
    return [_parse(str(name), entry) for name, entry in servers.items()]


def _parse(name: str, entry: Any) -> ServerSettings:
    where = f"mcp_servers: server {name!r}"
    if not _NAME.match(name):
        raise ConfigError(f"{where}: a name has letters, digits, _ and -, at most 40")
    if not isinstance(entry, Mapping):
        raise ConfigError(f'{where} must be a mapping such as {{"command": ["program", "argument"]}}')
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(f"{where} has no option {key!r}{suggestion(str(key), _KEYS)}")
    command = _command(entry.get("command"), entry.get("args"), where)
    url = entry.get("url")
    if bool(command) == bool(url):
        raise ConfigError(f"{where} needs either command (a program) or url (a server that runs already)")
    if url and not (isinstance(url, str) and url.startswith(("http://", "https://"))):
        raise ConfigError(f"{where}: url must begin with http:// or https://")
    return ServerSettings(
        name=name,
        command=command,
        env=_texts(entry.get("env"), f"{where}: env"),
        cwd=_text(entry.get("cwd"), f"{where}: cwd"),
        url=url or None,
        headers=_texts(entry.get("headers"), f"{where}: headers"),
        shared=_flag(entry.get("shared", False), f"{where}: shared"),
        timeout=_seconds(entry.get("timeout", 60.0), f"{where}: timeout"),
        start_timeout=_seconds(entry.get("start_timeout", 60.0), f"{where}: start_timeout"),
    )


def _command(command: Any, args: Any, where: str) -> tuple[str, ...]:
    """A list, or a text with ``args`` beside it (as other MCP clients have it) or in it."""
    if command is None:
        return ()
    if isinstance(command, str):
        try:
            command = [command] if args is not None else shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"{where}: command cannot be read: {error}") from None
    words = [*command, *(args or ())] if isinstance(command, list) and isinstance(args or [], list) else None
    if not words or not all(isinstance(word, str) and "\0" not in word for word in words):
        raise ConfigError(f'{where}: command must be a list of texts such as ["program", "argument"]')
    return tuple(words)


def _text(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ConfigError(f"{where} must be a text")


def _texts(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a mapping of names to texts")
    for key, item in value.items():
        if not isinstance(item, str | int | float):
            # The value may be a secret: name the key alone.
            raise ConfigError(f"{where}: {key} must be a text")
    return {str(key): str(item) for key, item in value.items()}


def _flag(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    raise ConfigError(f"{where} must be true or false")


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 86_400:
        return float(value)
    raise ConfigError(f"{where} must be a number of seconds above 0")
