"""Images as the engine can start them: pulled or converted once per run."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from pathlib import Path

from environments.errors import ImageUnusable
from environments.sandboxes.singularity.engine import PULL_TIMEOUT, Engine

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:")


class Images:
    """Images of one run, kept in its directory."""

    def __init__(self, engine: Engine, directory: Path) -> None:
        self._engine = engine
        self._directory = directory
        self._locks: dict[str, asyncio.Lock] = {}
        self._ready: dict[str, str] = {}

    async def ready(self, image: str) -> str:
        """Path of a SIF file or sandbox directory for an image: a path of either, a reference with a
        scheme (``docker://``, ``oras://``, ``docker-archive:``), or a name as Docker takes it.

        ``SandboxError`` where it cannot be had.
        """
        async with self._locks.setdefault(image, asyncio.Lock()):
            if image not in self._ready:
                self._ready[image] = await self._prepare(image)
            return self._ready[image]

    async def _prepare(self, image: str) -> str:
        target = self._directory / hashlib.sha256(image.encode()).hexdigest()[:16]
        part = f"{target}.part"
        if _has_scheme(image):
            arguments = ["pull", "--force", part, image]
        elif path := await asyncio.to_thread(_existing, image):
            if await asyncio.to_thread(_can_start, path):
                return str(path)
            arguments = ["build", "--sandbox", part, str(path)]
        elif image.startswith(("/", "./", "../", "~")):
            raise ImageUnusable(f"there is no image {image}")
        else:
            arguments = ["pull", "--force", part, f"docker://{image}"]
        await asyncio.to_thread(self._directory.mkdir, exist_ok=True)
        await self._engine.run(arguments, timeout=PULL_TIMEOUT, pulling=True)
        await asyncio.to_thread(os.rename, part, target)
        return str(target)


def _existing(image: str) -> Path | None:
    path = Path(image).expanduser()
    return path.resolve() if path.exists() else None


def _can_start(path: Path) -> bool:
    """A bare root file system lacks the scripts by which the engine starts instances."""
    return path.is_file() or (path / ".singularity.d").is_dir()


def _has_scheme(image: str) -> bool:
    """Whether it names its transport; ``ubuntu:22.04`` does not, ``docker-archive:x.tar`` does."""
    found = _SCHEME.match(image)
    if found is None:
        return False
    known = ("docker-archive", "docker-daemon", "oci-archive", "oci", "library", "shub")
    return image[found.end() :].startswith("//") or found.group()[:-1] in known
