"""Who owns a run: this process, told apart from all others of all machines."""

from __future__ import annotations

import os

from environments.sandboxes import owner as processes

LEASE_SECONDS = 180
"""A run whose lease is older than this is dead, whoever owned it."""


def this_owner() -> str:
    """One word that names this process."""
    return f"{_machine()}:{os.getpid()}:{processes.started(os.getpid())}"


def is_dead(owner: str, lease_age: float) -> bool:
    """Whether a run's owner is gone. For one of this machine we can look; for others the lease says."""
    machine, _, process = owner.rpartition(":")[0].rpartition(":")
    began = owner.rpartition(":")[2]
    alive = processes.is_alive(process, began, same_world=machine == _machine())
    return not alive if alive is not None else lease_age > LEASE_SECONDS


def described(owner: str) -> str:
    """An owner in words."""
    machine, _, process = owner.rpartition(":")[0].rpartition(":")
    if not process.isdigit():
        return ""
    return f"process {process}" + ("" if machine == _machine() else " elsewhere")


def _machine() -> str:
    """Name of the process namespace: process numbers mean something only in the same one."""
    return processes.world().replace("/", "-")
