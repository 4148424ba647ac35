"""The program ``apptainer`` or ``singularity``: where it is, its environment, running it to its end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from environments.errors import ConfigError, SandboxError
from environments.sandboxes.singularity import process_table

_NAMES = ("apptainer", "singularity")
_PREFIXES = ("APPTAINER_", "SINGULARITY_")
_BOTH = ("HOME", "LANG", "TMPDIR", "USER", "LOGNAME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
_SETTINGS = ("CACHEDIR", "TMPDIR", "CONFIGDIR", "CONFIG_FILE")
_FOR_PULLS = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR")
_START_TIMEOUT = 180.0
PULL_TIMEOUT = 3600.0


@dataclass(frozen=True, slots=True)
class Instance:
    """A running instance: the process number of its init, and files that the engine leaves behind."""

    name: str
    pid: int
    logs: tuple[str, ...]


class Engine:
    """One engine. Nothing of our own environment reaches a sandbox through it."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def find(cls) -> Engine:
        """The engine that is installed. ``ConfigError`` where there is none."""
        for name in _NAMES:
            if path := shutil.which(name):
                return cls(path)
        raise ConfigError("the singularity backend needs the program apptainer or singularity: install one")

    def environment(self, *, pulling: bool = False) -> dict[str, str]:
        """Variables that the engine gets: its own settings, for pulls registry credentials and proxies."""
        wanted = {f"{prefix}{setting}" for prefix in _PREFIXES for setting in _SETTINGS} | set(_BOTH)
        if pulling:
            wanted |= {name for name in os.environ if name.startswith(_PREFIXES)}
            wanted |= {name for name in os.environ if name.lower() in _FOR_PULLS or name in _FOR_PULLS}
        found = {name: os.environ[name] for name in wanted if name in os.environ}
        return {"PATH": os.environ.get("PATH", os.defpath), **found}

    async def run(
        self, arguments: Sequence[str], *, timeout: float = _START_TIMEOUT, pulling: bool = False
    ) -> str:
        """Run it to its end; what it printed. ``SandboxError`` with its own words where it fails."""
        process = await asyncio.create_subprocess_exec(
            self.path,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment(pulling=pulling),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout):
                out, err = await process.communicate()
        except TimeoutError:
            raise SandboxError(f"{self.path} {arguments[0]} took longer than {timeout:.0f} s") from None
        finally:
            if process.returncode is None:
                process_table.kill_tree(process.pid)
        if process.returncode:
            raise SandboxError(f"{self.path} {arguments[0]} failed: {_reason(err)}")
        return out.decode("utf-8", "replace")

    async def instances(self, name: str = "") -> list[Instance]:
        """Running instances of this user, all or those of one name."""
        arguments = ["instance", "list", "--json", *([name] if name else [])]
        try:
            found: list[dict[str, Any]] = json.loads(await self.run(arguments))["instances"] or []
            return [
                Instance(
                    entry["instance"],
                    int(entry["pid"]),
                    tuple(filter(None, (entry.get("logErrPath"), entry.get("logOutPath")))),
                )
                for entry in found
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxError(f"{self.path} lists its instances in an unknown form: {error}") from error


def _reason(message: bytes) -> str:
    """The engine's complaints, without its remarks."""
    lines = [line.strip() for line in message.decode("utf-8", "replace").splitlines() if line.strip()]
    bad = [line for line in lines if not line.startswith(("INFO", "WARNING", "DEBUG"))]
    return " ".join(bad or lines)[-1000:]
