"""Who owns a run: this process, told apart from all others of all machines."""

from __future__ import annotations

import os
from pathlib import Path

LEASE_SECONDS = 180
"""A run whose lease is older than this is dead, whoever owned it."""


def this_owner() -> str:
    """One word that names this process."""
    return f"{_machine()}:{os.getpid()}:{_started(os.getpid())}"


def is_dead(owner: str, lease_age: float) -> bool:
    """Whether a run's owner is gone. For one of this machine we can look; for others the lease says."""
    machine, _, process = owner.rpartition(":")[0].rpartition(":")
    if machine == _machine() and process.isdigit():
        return _started(int(process)) != owner.rpartition(":")[2]
    return lease_age > LEASE_SECONDS


def _machine() -> str:
    """Name of the process namespace: process numbers mean something only in the same one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').readlink().name.strip('pid:[]')}"
    except OSError:  # no Linux: the lease alone must do
        return "unknown"


def _started(process: int) -> str:
    """When a process began, in ticks since boot; empty where there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]
