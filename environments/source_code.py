"""Which code an environment is: where its class can be imported from, and whether it has changed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

_PACKAGE = Path(__file__).resolve().parent
_MOST_FILES = 1000


def code_of(cls: type) -> str:
    """A class as ``module:Class`` or ``/path/file.py:Class``; empty where neither finds it again."""
    if "<locals>" in cls.__qualname__ or "." in cls.__qualname__:
        return ""
    path = _file(sys.modules.get(cls.__module__))
    if path is None:
        return ""
    if path.is_relative_to(_PACKAGE):
        parts = path.relative_to(_PACKAGE.parent).with_suffix("").parts
        return f"{'.'.join(parts)}:{cls.__qualname__}"
    return f"{path}:{cls.__qualname__}"


def sources_of(cls: type) -> dict[str, str]:
    """Files that an environment's own code consists of, each with a hash of its content.

    They are those of its class and of the classes above it, without the layers of the framework that all
    environments share, and for code outside this package also the other modules beside it that are loaded.
    """
    modules = {c.__module__ for c in cls.__mro__}
    files = {path for name in modules if (path := _file(sys.modules.get(name))) is not None}
    outside = {path for path in files if not path.is_relative_to(_PACKAGE) and not _installed(path)}
    own = {path for path in files if path.is_relative_to(_PACKAGE) and path.parent != _PACKAGE} | outside
    roots = {path.parent for path in outside}
    for module in list(sys.modules.values()) if roots else []:
        path = _file(module)
        if path is not None and path.parent in roots and not path.is_relative_to(_PACKAGE):
            own.add(path)
    found: dict[str, str] = {}
    for path in sorted(own)[:_MOST_FILES]:
        base = _PACKAGE.parent if path.is_relative_to(_PACKAGE) else path.parent
        found[path.relative_to(base).as_posix()] = _hash_of(path)
    return found


def version_of(sources: Mapping[str, str]) -> str:
    """One hash for all files; empty where there are none."""
    if not sources:
        return ""
    text = "".join(f"{name}={value};" for name, value in sorted(sources.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Names of files that both have and that differ."""
    return sorted(name for name in before.keys() & now.keys() if before[name] != now[name])


def git_commit(cls: type) -> str | None:
    """Commit of the checkout that holds the class's code, None where there is none."""
    file = _file(sys.modules.get(cls.__module__))
    if file is None:
        return None
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=file.parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


def _file(module: ModuleType | None) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if isinstance(name, str) and name.endswith(".py") else None


def _installed(path: Path) -> bool:
    return "site-packages" in path.parts or path.is_relative_to(Path(sys.base_prefix) / "lib")


def _hash_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "unreadable"
