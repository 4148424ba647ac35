"""Who made a sandbox: a process, told apart from all others of all machines."""

from __future__ import annotations

import os
from pathlib import Path


def world() -> str:
    """This boot and process namespace, in which process numbers mean something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:  # no Linux: every owner is a stranger, and deadlines alone count
        return f"unknown/{os.getpid()}"


def started(process: int) -> str:
    """When a process began, in ticks since boot; empty where there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def is_alive(process: str, began: str, *, same_world: bool) -> bool | None:
    """Whether a process that began then still lives; None where it cannot be looked at from here."""
    if not same_world or not process.isdigit():
        return None
    return started(int(process)) == began
