"""Labels that say which run a container belongs to, and whether that run is over."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any

from environments.sandboxes import owner
from environments.sandboxes.base import SandboxEntry

FRAMEWORK = "hermes-environments"

LABEL = "hermes.framework"
RUN = "hermes.run"
SANDBOX = "hermes.sandbox"
OWNER = "hermes.owner"
DEADLINE = "hermes.deadline"
DIRECTORY = "hermes.directory"
USER = "hermes.user"
"""The image's own user, as whom commands run."""

NAME = "hermes-"
"""What containers' names begin with."""

_KEPT = re.compile(r"\.kept-(\d+)\Z")


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
    return f"{pid}/{owner.started(pid)}/{owner.world()}"


def kept_name(name: str, deadline: float) -> str:
    """Name of a container that outlives its run: labels cannot be changed, names can."""
    return f"{name}.kept-{int(deadline)}"


def entry_of(container: Mapping[str, Any]) -> SandboxEntry:
    """A container of ours, as the engine lists it."""
    labels: Mapping[str, str] = container.get("Labels") or {}
    kept = next(filter(None, map(_KEPT.search, container.get("Names") or [])), None)
    pid, _, rest = labels.get(OWNER, "").partition("/")
    began, _, world = rest.partition("/")
    deadlines = [labels.get(DEADLINE, ""), kept[1] if kept else ""]
    return SandboxEntry(
        backend="docker",
        id=f"{NAME}{labels.get(SANDBOX, '')}",
        run=labels.get(RUN, ""),
        owner=f"process {pid}" + ("" if world == owner.world() else " elsewhere"),
        owner_alive=owner.is_alive(pid, began, same_world=world == owner.world()),
        created_at=_number(container.get("Created")),
        deadline=min((float(text) for text in deadlines if text.isdigit()), default=None),
        kept=kept is not None,
        handle=container["Id"],
    )


def is_abandoned(labels: Mapping[str, str]) -> bool:
    """Whether the owner is known to be dead, or the deadline is over.

    An owner on another machine, after a reboot or in another pid namespace cannot be looked at: its
    containers are left alone until their deadline.
    """
    return entry_of({"Id": "", "Labels": labels}).abandoned


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
