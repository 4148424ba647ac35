"""The image that a task names: a registry reference, or a directory with a Dockerfile."""

from __future__ import annotations

from pathlib import Path

from environments.errors import ImageUnusable


def dockerfile_of(name: str) -> Path | None:
    """The Dockerfile that ``name`` means; None for a reference. Reads the disk.

    ``ImageUnusable`` for what looks like a directory and holds no Dockerfile.
    """
    path = Path(name).expanduser()
    if path.name == "Dockerfile" and path.is_file():
        return path
    if (path / "Dockerfile").is_file():
        return path / "Dockerfile"
    if name.startswith(("/", "./", "../", "~")):
        raise ImageUnusable(
            f"the image {name!r} looks like a directory, but {path / 'Dockerfile'} does not exist"
        )
    return None
