"""Labels that say whose a sandbox is, so that the next run ends what a dead one left.

They keep to the characters and the length that every provider allows.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

RUN = "hermes-run"
SANDBOX = "hermes-sandbox"
WORLD = "hermes-world"
PROCESS = "hermes-process"
DEADLINE = "hermes-deadline"

_LONGEST = 60


def labels_for(run_id: str, sandbox: str, lifetime: float) -> dict[str, str]:
    """Labels of a new sandbox that may live ``lifetime`` seconds."""
    return {
        RUN: clean(run_id),
        SANDBOX: sandbox,
        WORLD: this_world(),
        PROCESS: f"{os.getpid()}-{_started(os.getpid())}",
        DEADLINE: str(int(time.time() + lifetime)),
    }


def clean(text: str) -> str:
    """Text as a label may hold it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:_LONGEST] or "none"


def is_abandoned(labels: Mapping[str, str]) -> bool:
    """Whether the run that made it is known to be dead, or its time is over.

    A run of another machine cannot be looked at: its sandboxes are left alone until their deadline.
    """
    deadline = labels.get(DEADLINE, "")
    if deadline.isdigit() and int(deadline) < time.time():
        return True
    process, _, started = labels.get(PROCESS, "").partition("-")
    return process.isdigit() and labels.get(WORLD) == this_world() and _started(int(process)) != started


def this_world() -> str:
    """One word for this machine, boot and process namespace: where process numbers mean something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:  # no Linux: every owner is a stranger, and deadlines alone count
        boot, namespace = "unknown", os.getpid()
    return hashlib.sha256(f"{boot}/{namespace}".encode()).hexdigest()[:20]


def _started(process: int) -> str:
    """When a process began, in ticks since boot; empty where there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
