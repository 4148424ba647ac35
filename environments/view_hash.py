"""What a rollout puts before its agent beside the prompt, as a hash: not what judges it.

An attempt that is judged again after this has changed stays an attempt at the item as it was.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from environments.results.fingerprint import content_hash, scrub
from environments.tasks.directory import digest_of

if TYPE_CHECKING:
    from environments.sandboxes.base import SandboxSpec


async def view_of_spec(spec: SandboxSpec) -> str:
    """A hash of the sandbox that is asked for, with the files of an image that is built. No secrets."""
    asked = scrub(asdict(replace(spec, lifetime=0.0, labels={})))
    if spec.image is not None:
        asked["image"] = await asyncio.to_thread(_image, spec.image)
    return content_hash(asked)


def with_tools(view: str, names: Iterable[str]) -> str:
    """A view together with the names of the agent's tools."""
    return hashlib.sha256(" ".join([view, *sorted(names)]).encode()).hexdigest()[:16]


def _image(image: str) -> str:
    path = Path(image)
    return digest_of(path) if path.is_dir() else image
