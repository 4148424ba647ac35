"""Modal's images, one object per name, so that each is built once."""

from __future__ import annotations

import asyncio
from typing import Any

from environments.sandboxes.hosted.images import dockerfile_of


class Images:
    """The images that a run has asked for. Modal builds them when a sandbox first needs them."""

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self._known: dict[str | None, Any] = {}

    async def get(self, name: str | None) -> Any:
        """The image for a reference, a directory with a Dockerfile, or None for Modal's Debian."""
        if name not in self._known:
            self._known[name] = await asyncio.to_thread(self._describe, name)
        return self._known[name]

    def _describe(self, name: str | None) -> Any:
        if name is None:
            return self._sdk.Image.debian_slim()
        dockerfile = dockerfile_of(name)
        if dockerfile is None:
            image = self._sdk.Image.from_registry(name)
        else:
            image = self._sdk.Image.from_dockerfile(dockerfile, context_dir=dockerfile.parent)
        return image.entrypoint([])  # a sandbox is to wait for commands, whatever the image is for
