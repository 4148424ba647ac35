"""The context of an image build: a directory as a tar archive, without what ``.dockerignore`` names."""

from __future__ import annotations

import asyncio
import hashlib
import re
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from environments.sandboxes.docker.credentials import registry_of

_CHUNK = 1 << 18
_BASE_IMAGE = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)", re.IGNORECASE | re.MULTILINE)
_NOT_A_TAG = re.compile(r"[^a-z0-9]+")


class Context:
    """An archive ready to be sent, and the tag that its content gives the image."""

    def __init__(self, archive: IO[bytes], tag: str, registries: list[str]) -> None:
        self.tag = tag
        self.registries = registries
        """Where the base images come from, as Docker's configuration names them."""
        self._archive = archive

    async def chunks(self) -> AsyncIterator[bytes]:
        """The archive's bytes."""
        self._archive.seek(0)
        while chunk := await asyncio.to_thread(self._archive.read, _CHUNK):
            yield chunk

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._archive.close()


def read_context(directory: Path) -> Context:
    """Pack a directory that holds a ``Dockerfile``. Equal content gives an equal tag."""
    ignored = Ignored((directory / ".dockerignore").read_text()) if _has_ignore(directory) else Ignored("")
    archive = tempfile.TemporaryFile()  # noqa: SIM115 - the Context closes it
    try:
        with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for path in _tree(directory, ""):
                if path not in ("Dockerfile", ".dockerignore") and ignored.matches(path):
                    continue
                tar.add(directory / path, path, recursive=False, filter=_without_owner)
        archive.seek(0)
        digest = hashlib.file_digest(archive, "sha256").hexdigest()
    except BaseException:  # nobody else has the file
        archive.close()
        raise
    name = _NOT_A_TAG.sub("-", directory.resolve().name.lower()).strip("-") or "image"
    text = (directory / "Dockerfile").read_text("utf-8", "replace")
    registries = sorted({registry_of(image) for image in _BASE_IMAGE.findall(text)})
    return Context(archive, f"hermes-environments/{name}:{digest[:16]}", registries)


class Ignored:
    """The patterns of a ``.dockerignore`` file; the last one that matches decides."""

    def __init__(self, text: str) -> None:
        lines = (line.strip() for line in text.splitlines())
        self._rules = [_rule(line) for line in lines if line and not line.startswith("#")]

    def matches(self, path: str) -> bool:
        """Whether a path, or a directory above it, is left out."""
        parts = path.split("/")
        above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        left_out = False
        for pattern, exception in self._rules:
            if any(pattern.fullmatch(part) for part in above):
                left_out = not exception
        return left_out


def _rule(line: str) -> tuple[re.Pattern[str], bool]:
    exception = line.startswith("!")
    pattern = line.removeprefix("!").strip().removeprefix("./").strip("/")
    text = ""
    position = 0
    while position < len(pattern):
        if pattern.startswith("**/", position):
            text, position = text + "(?:.*/)?", position + 3
        elif pattern.startswith("**", position):
            text, position = text + ".*", position + 2
        elif pattern[position] == "*":
            text, position = text + "[^/]*", position + 1
        elif pattern[position] == "?":
            text, position = text + "[^/]", position + 1
        else:
            text, position = text + re.escape(pattern[position]), position + 1
    return re.compile(text, re.DOTALL), exception


def _tree(root: Path, prefix: str) -> Iterator[str]:
    for entry in sorted((root / prefix).iterdir()):
        path = f"{prefix}{entry.name}"
        yield path
        if entry.is_dir() and not entry.is_symlink():
            yield from _tree(root, f"{path}/")


def _has_ignore(directory: Path) -> bool:
    return (directory / ".dockerignore").is_file()


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Owners and times do not belong to the content: with them the tag would change at every checkout."""
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    return member
