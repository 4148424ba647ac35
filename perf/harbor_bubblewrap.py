"""An environment for Harbor like our local sandboxes: a root of its own on this machine, without images.

``harbor_runs.py`` has Harbor load this by its import path. Every command runs under bubblewrap in a root
whose ``/usr`` and ``/etc`` are this machine's and whose other directories belong to the trial.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

from harbor.environments.base import BaseEnvironment, ExecResult  # type: ignore[import-not-found]
from harbor.environments.capabilities import EnvironmentCapabilities  # type: ignore[import-not-found]

_READ_ONLY = ("usr", "etc")
_LINKS = ("bin", "sbin", "lib", "lib64")
_OWN = ("logs", "tests", "solution", "app", "tmp", "root", "var", "installed-agent")


class BubblewrapEnvironment(BaseEnvironment):  # type: ignore[misc]
    """One trial's machine; its directories are below a temporary directory of this machine."""

    @staticmethod
    def type() -> str:
        """Name in results."""
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Commands have no network."""
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        """No image is built."""

    async def start(self, force_build: bool) -> None:
        """Make the directories."""
        self._root = Path(tempfile.mkdtemp(prefix="harbor-root-"))
        for name in _OWN:
            (self._root / name).mkdir()
        for name in ("agent", "verifier", "artifacts"):
            (self._root / "logs" / name).mkdir()

    async def stop(self, delete: bool) -> None:
        """Remove them."""
        shutil.rmtree(self._root, ignore_errors=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command with namespaces of its own."""
        arguments = ["--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev"]
        for name in _READ_ONLY:
            arguments += ["--ro-bind", f"/{name}", f"/{name}"]
        for name in _LINKS:
            arguments += ["--symlink", f"usr/{name}", f"/{name}"]
        for name in _OWN:
            arguments += ["--bind", str(self._root / name), f"/{name}"]
        for key, value in (env or {}).items():
            arguments += ["--setenv", key, value]
        process = await asyncio.create_subprocess_exec(
            *("bwrap", *arguments, "--chdir", cwd or "/app", "bash", "-c", command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(timeout_sec):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file in."""
        shutil.copy(source_path, self._made(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a tree in."""
        shutil.copytree(source_dir, self._made(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out."""
        shutil.copy(self._inside(source_path), target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a tree out."""
        shutil.copytree(self._inside(source_dir), target_dir, dirs_exist_ok=True)

    def _inside(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _made(self, path: str) -> Any:
        found = self._inside(path)
        found.parent.mkdir(parents=True, exist_ok=True)
        return found
