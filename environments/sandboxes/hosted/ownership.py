"""Labels that say whose a sandbox is, so that the next run ends what a dead one left.

They keep to the characters and the length that every provider allows.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping

from environments.sandboxes import owner
from environments.sandboxes.base import SandboxEntry

RUN = "hermes-run"
SANDBOX = "hermes-sandbox"
WORLD = "hermes-world"
PROCESS = "hermes-process"
MADE = "hermes-made"
DEADLINE = "hermes-deadline"
KEPT = "hermes-kept"
"""Deadline of one that outlives its run."""

_LONGEST = 60


def labels_for(run_id: str, sandbox: str, lifetime: float) -> dict[str, str]:
    """Labels of a new sandbox that may live ``lifetime`` seconds."""
    return {
        RUN: clean(run_id),
        SANDBOX: sandbox,
        WORLD: this_world(),
        PROCESS: f"{os.getpid()}-{owner.started(os.getpid())}",
        MADE: str(int(time.time())),
        DEADLINE: str(int(time.time() + lifetime)),
    }


def labels_of_process(run_id: str) -> dict[str, str]:
    """Labels that all sandboxes of a run in this process share."""
    labels = labels_for(run_id, "", 0)
    return {name: labels[name] for name in (RUN, WORLD, PROCESS)}


def clean(text: str) -> str:
    """Text as a label may hold it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:_LONGEST] or "none"


def kept_labels(labels: Mapping[str, str], seconds: float) -> dict[str, str]:
    """The same labels for one that outlives its run, by so long at most."""
    deadline = int(time.time() + seconds)
    known = labels.get(DEADLINE, "")
    return {**labels, KEPT: str(min(deadline, int(known)) if known.isdigit() else deadline)}


def entry_of(backend: str, identity: str, labels: Mapping[str, str]) -> SandboxEntry:
    """A sandbox of ours, by its labels."""
    process, _, began = labels.get(PROCESS, "").partition("-")
    same_world = labels.get(WORLD) == this_world()
    return SandboxEntry(
        backend=backend,
        id=identity,
        run=labels.get(RUN, ""),
        owner=f"process {process}" + ("" if same_world else " elsewhere"),
        owner_alive=owner.is_alive(process, began, same_world=same_world),
        created_at=_time(labels.get(MADE)),
        deadline=_time(labels.get(KEPT) or labels.get(DEADLINE)),
        kept=KEPT in labels,
        handle=dict(labels),
    )


def is_abandoned(labels: Mapping[str, str]) -> bool:
    """Whether the run that made it is known to be dead, or its time is over.

    A run of another machine cannot be looked at: its sandboxes are left alone until their deadline.
    """
    return entry_of("", "", labels).abandoned


def family_of(labels: Mapping[str, str]) -> str:
    """The family of marks that the sandbox's commands bear."""
    return labels.get(SANDBOX, "").rpartition("-")[2]


def _time(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None


def this_world() -> str:
    """One word for this machine, boot and process namespace: where process numbers mean something."""
    return hashlib.sha256(owner.world().encode()).hexdigest()[:20]
