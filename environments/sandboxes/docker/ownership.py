"""Labels that say which run a container belongs to, and whether that run is over."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

FRAMEWORK = "hermes-environments"

LABEL = "hermes.framework"
RUN = "hermes.run"
SANDBOX = "hermes.sandbox"
OWNER = "hermes.owner"
DEADLINE = "hermes.deadline"


def labels_for(run_id: str, sandbox_id: str, lifetime: float) -> dict[str, str]:
    """Labels of a new container that may live ``lifetime`` seconds."""
    return {
        LABEL: FRAMEWORK,
        RUN: run_id,
        SANDBOX: sandbox_id,
        OWNER: this_process(),
        DEADLINE: str(int(time.time() + lifetime)),
    }


def this_process() -> str:
    """Identity of this process: pid, start time, and the pid namespace and boot that they belong to."""
    pid = os.getpid()
    return f"{pid}/{_started(pid)}/{_world()}"


def is_abandoned(labels: Mapping[str, str]) -> bool:
    """Whether the owner is known to be dead, or the deadline is over.

    An owner on another machine, after a reboot or in another pid namespace cannot be looked at: its
    containers are left alone until their deadline.
    """
    deadline = labels.get(DEADLINE, "")
    if deadline.isdigit() and int(deadline) < time.time():
        return True
    pid, _, rest = labels.get(OWNER, "").partition("/")
    started, _, world = rest.partition("/")
    return pid.isdigit() and world == _world() and _started(int(pid)) != started


def _world() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # not Linux: every owner is a stranger, deadlines alone count
        return f"unknown/{os.getpid()}"


def _started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
