"""Processes of an instance, seen from the host, where nothing in the sandbox can hide or hinder."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Callable
from pathlib import Path

from environments.sandboxes.local.inside.processes import descendants, kill_found, send_signal, state
from environments.sandboxes.remote_shell.program import MARK_VARIABLE, mark_of
from environments.sandboxes.singularity.ending import mark_borne

_Predicate = Callable[[int], bool]
_VARIABLE = f"{MARK_VARIABLE}=".encode()
_PARENTS = mark_of("", -1).encode()
_KILL_PATIENCE = 0.5
_FILE_LOCKS = 10
"""Number of the limit that carries marks, which the standard library does not name."""


def parents_mark(family: str) -> str:
    """The mark of the engine's processes that stand outside an instance, above what was started in it.

    It is the largest of the family, since what inherits it inside may only lower it.
    """
    return mark_of(family, -1)


def set_mark(pid: int, mark: str) -> None:
    """Have a child of ours, and what it will start, bear a mark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or is another user's
        resource.prlimit(pid, _FILE_LOCKS, (int(mark), int(mark)))


def wake(pid: int) -> bool:
    """Have a process go on; whether it was stopped."""
    if state(pid) not in "Tt":
        return False
    send_signal(pid, signal.SIGCONT)
    return True


def wake_tree(root: int) -> bool:
    """Have a process and all below it go on; whether one of them was stopped."""
    stopped = [pid for pid in (root, *descendants(root)) if wake(pid)]
    return bool(stopped)


def executable(pid: int) -> str:
    """The file that a process runs; empty where it cannot be told."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""


def runs_another_program(root: int, namespace: str) -> bool:
    """Whether something below ``root`` is in a namespace and runs another program than ``root`` does."""
    own = executable(root)
    below = [pid for pid in descendants(root) if process_namespace(pid) == namespace]
    return bool(own) and any(executable(pid) not in ("", own) for pid in below)


def kill_tree(root: int) -> None:
    """Kill a process of the engine and what is below it, before that can get another parent.

    Whoever joins an instance has his parent put into its control groups. Orphaned at that moment he would
    put the host's first process there, and with it all that is started on the host from then on.
    """
    kill_found(lambda: [root, *descendants(root)], _KILL_PATIENCE)


def kill_marked(mark: str, namespace: str, patience: float = 10.0) -> int:
    """Kill all processes whose mark begins with ``mark``. Returns how many are left.

    ``namespace`` is that of the instance's processes: in it an environment variable is believed as
    well. The engine's processes outside are spared. Blocking: call it in a thread.
    """
    wanted = mark.encode()
    return _kill(lambda pid: _bears(pid, wanted, namespace), patience)


def kill_namespace(namespace: str, init: int, patience: float = 10.0) -> int:
    """Kill all processes of an instance but its init. Returns how many are left. Blocking."""
    return _kill(lambda pid: pid != init and process_namespace(pid) == namespace, patience)


def process_namespace(pid: int) -> str:
    """Name of a process's process namespace; empty where it cannot be told."""
    try:
        return Path(f"/proc/{pid}/ns/pid").readlink().name
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    """Number of the parent, 0 where there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def command_line(pid: int) -> str:
    """How a process calls itself; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _kill(wanted: _Predicate, patience: float) -> int:
    return kill_found(lambda: list(filter(wanted, _living())), patience)


def _living() -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if state(pid) not in "ZX"]


def _bears(pid: int, mark: bytes, namespace: str) -> bool:
    process = Path(f"/proc/{pid}")
    borne = mark_borne(process)
    outside = process_namespace(pid) != namespace
    if borne.startswith(mark) and not (outside and borne.endswith(_PARENTS)):
        return True
    if outside:
        return False
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # gone just now
        return False
    return any(entry.startswith(_VARIABLE + mark) for entry in variables)
