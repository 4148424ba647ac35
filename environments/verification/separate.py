"""A separate verifier: declared artifacts are carried from the agent's machine into a fresh one."""

from __future__ import annotations

import errno
import logging
import posixpath
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from environments.errors import VerifierError
from environments.sandboxes.base import Sandbox
from environments.sandboxes.transfer import download_dir, download_file, upload_dir, upload_file
from environments.tasks.model import ARTIFACTS_DIRECTORY, Artifact

logger = logging.getLogger(__name__)

LARGEST_ARTIFACT = 2 << 30

_BY_THE_AGENT = frozenset(
    {errno.EFBIG, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO}
)
"""Reasons for which what it made cannot be taken: no agent may void its grade by them."""


async def carry(artifacts: Sequence[Artifact], source: Sandbox, target: Sandbox) -> list[str]:
    """Copy what is declared, and ``/logs/artifacts``, to the same places; what was there is returned.

    What the agent did not make is left out: the tests will see. So are links that lead out of an artifact,
    and artifacts that the agent made too large or unreadable. ``VerifierError`` where it is not its doing.
    """
    found = []
    declared = [artifact for artifact in artifacts if artifact.source.rstrip("/") != ARTIFACTS_DIRECTORY]
    for artifact in [*declared, Artifact(ARTIFACTS_DIRECTORY)]:
        path = (
            artifact.source
            if artifact.source.startswith("/")
            else f"{source.working_directory}/{artifact.source}"
        )
        if posixpath.normpath(f"/{path.strip('/')}") == "/":
            raise VerifierError(
                f"the artifact {artifact.source} is the whole machine; name what is made in it"
            )
        with tempfile.TemporaryDirectory(prefix="hermes-artifact-") as directory:
            if await _carry_one(path, artifact, Path(directory), source, target):
                found.append(path)
    return found


async def _carry_one(path: str, artifact: Artifact, local: Path, source: Sandbox, target: Sandbox) -> bool:
    try:
        kind = (await source.stat(path)).kind
        if kind == "directory":
            await download_dir(source, path, local / "tree", max_bytes=LARGEST_ARTIFACT, refused=[])
        elif kind == "file":
            await download_file(source, path, local / "file", max_bytes=LARGEST_ARTIFACT)
        else:
            return False  # a link or a device proves nothing, and may lead anywhere
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno not in _BY_THE_AGENT:
            raise VerifierError(f"the artifact {path} cannot be carried over: {error}") from error
        logger.warning("the artifact %s is left out: %s", path, error)
        return False
    try:
        if kind == "directory":
            _leave_out(local / "tree", artifact.exclude)
            await upload_dir(target, local / "tree", path)
        else:
            await upload_file(target, local / "file", path)
    except OSError as error:
        raise VerifierError(f"the artifact {path} cannot be carried over: {error}") from error
    return True


def _leave_out(tree: Path, patterns: Sequence[str]) -> None:
    for path in sorted(tree.rglob("*"), reverse=True):
        relative = path.relative_to(tree).as_posix()
        if any(fnmatch(relative, pattern) or fnmatch(path.name, pattern) for pattern in patterns):
            if path.is_dir() and not path.is_symlink():
                if not any(path.iterdir()):
                    path.rmdir()
            else:
                path.unlink(missing_ok=True)
