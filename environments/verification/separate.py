"""A separate verifier: declared artifacts are carried from the agent's machine into a fresh one."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from environments.errors import VerifierError
from environments.sandboxes.base import Sandbox
from environments.sandboxes.transfer import download_dir, download_file, upload_dir, upload_file
from environments.tasks.model import ARTIFACTS_DIRECTORY, Artifact

LARGEST_ARTIFACT = 2 << 30


async def carry(artifacts: Sequence[Artifact], source: Sandbox, target: Sandbox) -> list[str]:
    """Copy what is declared, and ``/logs/artifacts``, to the same places; what was there is returned.

    What the agent did not make is left out: the tests will see. Links that lead out of an artifact are
    left out as well. Raises ``VerifierError`` for an artifact that is too large.
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
            _leave_out(local / "tree", artifact.exclude)
            await upload_dir(target, local / "tree", path)
        elif kind == "file":
            await download_file(source, path, local / "file", max_bytes=LARGEST_ARTIFACT)
            await upload_file(target, local / "file", path)
        else:
            return False  # a link or a device proves nothing, and may lead anywhere
    except (FileNotFoundError, NotADirectoryError):
        return False
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
