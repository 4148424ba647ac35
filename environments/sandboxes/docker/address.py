"""Where the engine listens: ``DOCKER_HOST``, the chosen Docker context, or a usual socket."""

from __future__ import annotations

import hashlib
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from environments.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Address:
    """A unix socket (``path``), or a host and port with TLS where ``tls`` is set."""

    path: str | None = None
    host: str = "localhost"
    port: int = 0
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        """Root of the HTTP API."""
        if self.path is not None:
            return "http://localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path is not None else f"tcp://{self.host}:{self.port}"


def find_address(environ: Mapping[str, str] = os.environ) -> Address:
    """The engine that the ``docker`` command would use. ``ConfigError`` for a bad ``DOCKER_HOST``."""
    if host := environ.get("DOCKER_HOST") or _context_host(environ):
        return parse_address(host, environ)
    runtime = environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    usual = (
        "/var/run/docker.sock",
        f"{runtime}/docker.sock",
        "/run/podman/podman.sock",
        f"{runtime}/podman/podman.sock",
    )
    return Address(path=next((path for path in usual if Path(path).exists()), usual[0]))


def parse_address(text: str, environ: Mapping[str, str] = os.environ) -> Address:
    """Read ``unix://PATH`` or ``tcp://HOST:PORT``; TLS as Docker's own variables say."""
    scheme, _, rest = text.partition("://")
    if scheme == "unix" and rest:
        return Address(path=rest)
    if scheme not in ("tcp", "http", "https") or not rest:
        raise ConfigError(
            f"DOCKER_HOST={text!r} is not understood; use unix:///path/to/docker.sock or tcp://host:port"
        )
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"DOCKER_HOST={text!r} is not understood: {error}") from error
    tls = _tls(environ) if scheme == "https" or environ.get("DOCKER_TLS_VERIFY") else None
    return Address(host=host or "localhost", port=port or (2376 if tls else 2375), tls=tls)


def configuration_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Docker's own directory of settings."""
    if directory := environ.get("DOCKER_CONFIG"):
        return Path(directory)
    return Path(environ.get("HOME") or Path.home()) / ".docker"


def read_configuration(environ: Mapping[str, str] = os.environ) -> dict[str, object]:
    """Docker's ``config.json``; empty where there is none or it is no JSON object."""
    try:
        content = json.loads((configuration_directory(environ) / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _context_host(environ: Mapping[str, str]) -> str | None:
    name = environ.get("DOCKER_CONTEXT") or read_configuration(environ).get("currentContext")
    if not isinstance(name, str) or name in ("", "default"):
        return None
    digest = hashlib.sha256(name.encode()).hexdigest()
    file = configuration_directory(environ) / "contexts" / "meta" / digest / "meta.json"
    try:
        host = json.loads(file.read_bytes())["Endpoints"]["docker"]["Host"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the Docker context {name!r} cannot be read: {error!r}; set DOCKER_HOST"
        ) from error
    return str(host)


def _tls(environ: Mapping[str, str]) -> ssl.SSLContext:
    directory = Path(environ.get("DOCKER_CERT_PATH") or configuration_directory(environ))
    try:
        context = ssl.create_default_context(cafile=str(directory / "ca.pem"))
        context.load_cert_chain(str(directory / "cert.pem"), str(directory / "key.pem"))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the TLS keys of the Docker engine (ca.pem, cert.pem, key.pem) in {directory} cannot be "
            f"read: {error}; set DOCKER_CERT_PATH"
        ) from error
    return context
