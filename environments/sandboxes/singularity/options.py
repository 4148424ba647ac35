"""How instances are started on this machine, and what it cannot do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from environments.errors import NotSupported, SandboxError

CAPABILITIES = (
    "CAP_CHOWN,CAP_DAC_OVERRIDE,CAP_FSETID,CAP_FOWNER,CAP_SETGID,CAP_SETUID,CAP_SETFCAP,CAP_SETPCAP,"
    "CAP_NET_BIND_SERVICE,CAP_SYS_CHROOT,CAP_KILL"
)
"""What root in a sandbox may do, where root starts it: enough to install packages and to change users."""

_READ_ONLY = (
    "/proc/sys",
    "/proc/irq",
    "/proc/bus",
    "/proc/fs",
    "/proc/acpi",
    "/proc/pressure",
    "/sys/devices/system",
)
"""Parts of the kernel's own file systems that root could change for the whole machine."""

_HIDDEN = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/proc/sysrq-trigger")
"""Files that tell of the whole machine, or act on it."""


SMALLEST_DISK_MB = 64
"""The engine makes no smaller file systems."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one sandbox."""

    memory_mb: int
    processes: int
    cpus: float | None = None


@dataclass(frozen=True, slots=True)
class Features:
    """What works here; found by trying, the best first."""

    root: bool
    overlay: bool = True
    """A directory on disk takes what the sandbox writes; else memory does."""
    disk_images: bool = True
    """A file system in a file takes it where disk space is limited."""
    control_groups: bool = True
    fakeroot: bool = True

    @classmethod
    def first_guess(cls) -> Features:
        """The best that this user may hope for."""
        root = os.geteuid() == 0
        # What the agent writes through a user namespace could not be removed afterwards.
        return cls(root=root, overlay=root, fakeroot=not root)

    def without_cause(self, error: SandboxError) -> Features:
        """The next best, after a start failed with ``error``; raises it where nothing is left to try."""
        text = str(error).lower()
        if self.control_groups and ("cgroup" in text or "dbus" in text):
            return replace(self, control_groups=False)
        if self.overlay and "overlay" in text:
            return replace(self, overlay=False)
        if "network" in text or "cni" in text:
            raise NotSupported(f"singularity cannot take the network away here: {error}") from error
        if self.fakeroot:
            return replace(self, fakeroot=False)
        raise error

    def limitations(self) -> Iterator[str]:
        """What a sandbox started so does not do."""
        if not self.control_groups:
            yield "memory and processors are not limited: the engine cannot use control groups here"
            if self.root:
                yield "processes are not limited: without control groups root is bound by nothing"
            else:
                yield "the limit of processes counts all processes of this user"
        if not self.overlay:
            yield "what the sandbox writes is kept in memory"
        if self.root:
            yield "root in the sandbox is root of this machine with fewer capabilities and a view of its own"
        yield "the image's WORKDIR is not known to the engine"


def start_arguments(
    features: Features, *, image: str, name: str, overlay: Path | None, network: bool, limits: Limits
) -> list[str]:
    """Arguments of the engine that start an instance."""
    arguments = ["instance", "start", "--containall", "--no-home"]
    arguments += ["--no-mount", "tmp,home,cwd,bind-paths,sys", *_rights(features)]
    if features.root:
        arguments += ["--bind", ",".join(_binds())]
    if not network:
        arguments += ["--net", "--network", "none"]
    if overlay is not None and features.overlay:
        arguments += ["--overlay", str(overlay)]
    else:
        arguments += ["--writable-tmpfs"]
    if features.control_groups:
        arguments += ["--memory", f"{limits.memory_mb}M", "--pids-limit", str(limits.processes)]
        if limits.cpus is not None:
            arguments += ["--cpus", f"{limits.cpus:g}"]
    return [*arguments, image, name]


def exec_arguments(features: Features, name: str, command: list[str]) -> list[str]:
    """Arguments of the engine that run a command in an instance."""
    return ["--silent", "exec", *_rights(features), "--pwd", "/", f"instance://{name}", *command]


def _rights(features: Features) -> list[str]:
    # --no-privs also helps where root itself lacks capabilities, which the engine would ask for.
    if features.root:
        return ["--no-privs", "--add-caps", CAPABILITIES]
    return ["--fakeroot"] if features.fakeroot else []


def _binds() -> Iterator[str]:
    for path in _READ_ONLY:
        if Path(path).exists():
            yield f"{path}:{path}:ro"
    for path in _HIDDEN:
        if Path(path).exists():
            yield f"/dev/null:{path}"
