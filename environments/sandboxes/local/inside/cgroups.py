"""Control groups of one sandbox: memory, number of processes, share of the processor.

Works with version 1 (one tree per controller) and version 2 (one tree for all), wherever this
process may make groups. What cannot be bounded this way is left to resource limits and the
watchdog; ``bounds`` says which controllers are in force.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import NamedTuple

from .processes import send_signal

_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD = 100_000


class Limits(NamedTuple):
    """What one sandbox may use. ``cpus`` None means no quota, only a fair share."""

    memory: int
    processes: int
    cpus: float | None


class ControlGroups:
    """The groups of one sandbox. Made by ``create``; a process is put into all of them."""

    def __init__(self, note: str | None = None) -> None:
        """``note``: a file that names every group before it is made, for whoever cleans up after us."""
        self.directories: list[str] = []
        self.bounds: set[str] = set()
        self._note = note

    def make(self, directory: str) -> bool:
        """Make one more group; False where it is not ours to make: read-only, forbidden, or there already."""
        if os.path.lexists(directory):
            return False
        if self._note is not None:
            with open(self._note, "a") as file:
                file.write(f"{directory}\n")
        try:
            os.mkdir(directory)
        except OSError:
            return False
        self.directories.append(directory)
        return True

    def add(self, pid: int) -> None:
        """Move a process, with all it will fork, into the groups."""
        for directory in self.directories:
            _write(directory, "cgroup.procs", str(pid))

    def out_of_memory_kills(self) -> int:
        """How many processes the kernel killed because the memory was used up."""
        for directory in self.directories:
            for file in ("memory.events", "memory.oom_control"):
                for line in _read(directory, file).splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return 0

    def most_processes(self) -> int | None:
        """The most processes and threads that were in the groups at a time; None where nobody counts them."""
        counts = [_read(directory, "pids.peak").strip() for directory in self.directories]
        return max((int(count) for count in counts if count.isdigit()), default=None)

    def remove(self, patience: float = 2.0) -> bool:
        """Remove the groups; their processes must be dead or dying. False where one is left."""
        self.directories = [path for path in self.directories if not remove_group(path, patience)]
        return not self.directories


def create(
    name: str,
    limits: Limits,
    note: str | None = None,
    *,
    mounts: str = "/proc/self/mountinfo",
    own: str = "/proc/self/cgroup",
) -> ControlGroups:
    """Make the groups ``name`` wherever this process may, each named in ``note`` first.

    None at all is no error.
    """
    groups = ControlGroups(note)
    paths = _own_paths(own)
    with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.split() for line in file]
    for words in lines:
        separator = words.index("-")
        kind, root, point = words[separator + 1], words[3], _unescape(words[4])
        if kind == "cgroup":
            options = words[separator + 3].split(",")
            for controller in set(options) & set(_CONTROLLERS) - groups.bounds:
                parent = _below(point, root, paths.get(controller, "/"))
                _try_version_1(groups, controller, os.path.join(parent, name), limits)
        elif kind == "cgroup2":
            _try_version_2(groups, point, _below(point, root, paths.get("", "/")), name, limits)
    return groups


def remove_group(directory: str, patience: float = 2.0) -> bool:
    """Remove one group and kill what is still in it; False if that takes longer than ``patience``."""
    deadline = time.monotonic() + patience
    while True:
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            for pid in _read(directory, "cgroup.procs").split():
                send_signal(int(pid), signal.SIGKILL)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        else:
            return True


def _try_version_1(groups: ControlGroups, controller: str, directory: str, limits: Limits) -> None:
    if directory not in groups.directories and not groups.make(directory):
        return
    try:
        if controller == "memory":
            _write(directory, "memory.limit_in_bytes", str(limits.memory))
            if os.path.exists(os.path.join(directory, "memory.memsw.limit_in_bytes")):
                _write(directory, "memory.memsw.limit_in_bytes", str(limits.memory))
        elif controller == "pids":
            _write(directory, "pids.max", str(limits.processes))
        elif limits.cpus is not None:
            _write(directory, "cpu.cfs_period_us", str(_PERIOD))
            _write(directory, "cpu.cfs_quota_us", str(max(1000, int(limits.cpus * _PERIOD))))
        groups.bounds.add(controller)
    except OSError:  # this controller does not bound it; ``bounds`` says so
        return


def _try_version_2(groups: ControlGroups, point: str, own: str, name: str, limits: Limits) -> None:
    """Take the nearest group above us that hands controllers down and lets us make groups in it."""
    parent = own
    while True:
        offered = set(_read(parent, "cgroup.subtree_control").split()) & set(_CONTROLLERS) - groups.bounds
        if offered and os.access(os.path.join(parent, "cgroup.procs"), os.W_OK):
            directory = os.path.join(parent, name)
            if groups.make(directory):
                _bound_version_2(groups, directory, offered, limits)
                return
        if os.path.normpath(parent) == os.path.normpath(point):
            return
        parent = os.path.dirname(parent)


def _bound_version_2(groups: ControlGroups, directory: str, offered: set[str], limits: Limits) -> None:
    quota = (
        f"{max(1000, int(limits.cpus * _PERIOD))} {_PERIOD}" if limits.cpus is not None else f"max {_PERIOD}"
    )
    values = {
        "memory": [("memory.max", str(limits.memory))],
        "pids": [("pids.max", str(limits.processes))],
        "cpu": [("cpu.max", quota)],
    }
    for controller in offered:
        try:
            for file, value in values[controller]:
                _write(directory, file, value)
            if controller == "memory" and os.path.exists(os.path.join(directory, "memory.swap.max")):
                _write(directory, "memory.swap.max", "0")
        except OSError:  # this controller does not bound it; ``bounds`` says so
            continue
        groups.bounds.add(controller)


def _own_paths(own: str) -> dict[str, str]:
    """Our group's path by controller; the empty name is version 2."""
    paths: dict[str, str] = {}
    with open(own, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def _below(point: str, root: str, path: str) -> str:
    """Where the group ``path`` is, in a mount of ``root`` at ``point``."""
    if root != "/" and (path == root or path.startswith(root + "/")):
        path = path[len(root) :]
    return os.path.join(point, path.lstrip("/")).rstrip("/")


def _write(directory: str, file: str, value: str) -> None:
    with open(os.path.join(directory, file), "w") as stream:
        stream.write(value)


def _read(directory: str, file: str) -> str:
    try:
        with open(os.path.join(directory, file)) as stream:
            return stream.read()
    except OSError:
        return ""


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
