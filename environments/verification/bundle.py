"""Stand-ins for what tests usually fetch from a network: ``uv``, ``pip``, ``apt-get``, ``curl``, pytest.

Most tests of the field begin by installing ``uv`` and have it fetch pytest. Where the sandbox has no
network that fails, whatever the agent did. So a directory of small programs goes first on the PATH of such
tests: they do nothing where what is wanted is there, run our own copy of pytest, and say ``needs X``
otherwise, which is a failure of the verifier and never a zero.

Our pytest runs with the sandbox's Python, but with none of its start-up files, plug-ins and settings.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import io
import re
import secrets
import tarfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from environments.errors import VerifierError
from environments.sandboxes.base import Sandbox

_FETCHING = re.compile(r"\b(?:uvx?|pip3?|apt-get|apt|curl)\b")
_PYTEST = re.compile(r"\bpytest\b")
_CANONICAL = re.compile(
    r"^(?:uvx?|pytest)\b(?:[^\n\\]|\\\n|\\.)*\n+"
    r"if \[\[? \$\? -eq 0 \]\]?; then\s+echo 1 ?> ?/logs/verifier/reward\.txt;?\s+"
    r"else\s+echo 0 ?> ?/logs/verifier/reward\.txt;?\s+fi",
    re.MULTILINE,
)
"""The end of nearly every test script of the field: the reward is pytest's exit code and nothing else."""
_TRIAL = b"def test_passes():\n    assert True\n\n\ndef test_fails():\n    assert False\n"
_TRIAL_TIMEOUT = 120.0
_DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_PLUGIN = "pytest-json-ctrf"
_PROGRAMS = ("uvx", "uv", "pip", "pip3", "apt-get", "apt", "curl", "pytest")
_PYGMENTS_LEXERS = ("__init__", "_mapping", "python", "diff", "special")
_INSTALLER = re.compile(r"astral\.sh/uv|sh\.rustup\.rs")
_START_FILES = (".local/bin/env", ".cargo/env")
"""Files that such tests source, and that the agent could have written."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The stand-ins in one sandbox."""

    environment: dict[str, str]
    version: str
    canonical: bool = False
    """Whether the script gives 1 exactly where pytest passes."""

    def passed(self, output: str) -> bool:
        """Whether our pytest said so in the output."""
        return f"hermes-verifier: {self.environment['HERMES_WORD']} all passed" in output


async def place_bundle(sandbox: Sandbox, tests: Path) -> Bundle | None:
    """Put the stand-ins into a sandbox without network whose tests would fetch; None elsewhere.

    Raises ``VerifierError`` where that is impossible.
    """
    script = (tests / "test.sh").read_text("utf-8", "replace")
    if sandbox.info.network != "none" or not fetches(script):
        return None
    data, version = await asyncio.to_thread(packed)
    directory = f"/tmp/.verifier-{secrets.token_hex(8)}"
    try:
        await sandbox.upload_tar(_whole(data), directory)
        await _empty_start_files(sandbox, script)
        path = (await sandbox.exec(["/bin/sh", "-c", 'printf %s "$PATH"'], cwd="/", timeout=60)).text
    except OSError as error:
        raise VerifierError(f"the tool bundle cannot be put into the sandbox: {error}") from error
    environment = {"PATH": f"{directory}/bin:{path}", "HERMES_BUNDLE": directory}
    environment["HERMES_WORD"] = secrets.token_hex(16)
    bundle = Bundle(environment, version, _is_canonical(script))
    if _PYTEST.search(script):
        await _try(sandbox, bundle, directory)
    return bundle


def fetches(script: str) -> bool:
    """Whether a test script begins with programs that the stand-ins replace where there is no network."""
    return _FETCHING.search(script) is not None


def missing_parts() -> list[str]:
    """What of the bundle is not installed on this machine; the extra ``verifier`` brings it."""
    return [name for name in _DISTRIBUTIONS if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _is_canonical(script: str) -> bool:
    found = _CANONICAL.search(script)
    return found is not None and _PYTEST.search(found.group()) is not None


async def _try(sandbox: Sandbox, bundle: Bundle, directory: str) -> None:
    """See our pytest pass and fail before it judges: one that does not run makes everything a zero."""
    tried = await sandbox.exec(
        [f"{directory}/bin/pytest", "-q", f"{directory}/trial.py"],
        cwd="/",
        env=bundle.environment,
        timeout=_TRIAL_TIMEOUT,
        merge_output=True,
    )
    if tried.exit_code != 1 or "1 failed, 1 passed" not in tried.text:
        lines = tried.text.strip().splitlines()
        raise VerifierError(
            f"the bundle's pytest does not work in this sandbox: {lines[-1] if lines else 'no output'}"
        )


async def forget_start_files(sandbox: Sandbox, tests: Path) -> list[str]:
    """Remove the files that an installer in the tests writes anew and that they then source: whatever
    stands there is the agent's. Returns what was there."""
    script = (tests / "test.sh").read_text("utf-8", "replace")
    if not _INSTALLER.search(script):
        return []
    paths = [f"{sandbox.home}/{name}" for name in _START_FILES if name in script]
    removal = 'for f; do [ -e "$f" ] || [ -L "$f" ] && rm -rf "$f" && echo "$f"; done; :'
    removed = await sandbox.exec(["/bin/sh", "-c", removal, "sh", *paths], cwd="/", timeout=60)
    return removed.text.splitlines()


async def _empty_start_files(sandbox: Sandbox, script: str) -> None:
    """Nothing installs anything here, so that what is sourced has to be there, and empty."""
    for name in _START_FILES:
        if name in script:
            await sandbox.write_bytes(f"{sandbox.home}/{name}", b"")


@cache
def packed() -> tuple[bytes, str]:
    """The bundle as a tar archive, and its version: a hash of what is in it.

    Raises ``VerifierError`` where pytest is not installed beside this package.
    """
    buffer = io.BytesIO()
    whole = hashlib.sha256()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data, executable in _files():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755 if executable else 0o644
            archive.addfile(entry, io.BytesIO(data))
            whole.update(f"{name} {len(data)} ".encode() + data)
    return buffer.getvalue(), whole.hexdigest()[:12]


def _files() -> Iterator[tuple[str, bytes, bool]]:
    own = resources.files("environments.verification") / "standins"
    for name in _PROGRAMS:
        yield f"bin/{name}", (own / "front.sh").read_bytes(), True
    yield "standin.sh", (own / "standin.sh").read_bytes(), True
    yield "run_pytest.py", (own / "run_pytest.py").read_bytes(), False
    yield "empty.ini", b"[pytest]\n", False
    yield "trial.py", _TRIAL, False
    for name in _DISTRIBUTIONS:
        yield from _modules(name, needed=True)
    yield from _modules(_PLUGIN, needed=False)


def _modules(name: str, *, needed: bool) -> Iterator[tuple[str, bytes, bool]]:
    try:
        files = importlib.metadata.files(name) or []
    except importlib.metadata.PackageNotFoundError:
        if needed:
            raise VerifierError(
                f"tests without network need {name} on this machine: pip install "
                "'hermes-environments[verifier]'"
            ) from None
        return
    for file in files:
        metadata = file.name == "METADATA"
        if not (metadata or (file.suffix == ".py" and _wanted(file))) or ".." in file.parts:
            continue
        yield f"lib/{file.as_posix()}", Path(str(file.locate())).read_bytes(), False


def _wanted(file: importlib.metadata.PackagePath) -> bool:
    """Pygments brings hundreds of languages, of which pytest shows two."""
    if file.parts[:2] == ("pygments", "lexers"):
        return file.stem in _PYGMENTS_LEXERS
    return file.parts[:2] != ("pygments", "styles") or file.stem in ("__init__", "_mapping", "default")


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1 << 18):
        yield data[start : start + (1 << 18)]
