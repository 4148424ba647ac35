"""How tasks that cannot be run are told: which, why, and what leaves them out."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection

WITHOUT_ENGINE = (
    "  without an engine: --env.terminal_backend local --env.task_images replay carries out each task's "
    "Dockerfile on this machine"
)
_MOST_SHOWN = 20
_PLAIN = re.compile(r"[\w./+-]+")


def listed(lines: Collection[str]) -> str:
    """Lines below a sentence, the first of many."""
    shown = [f"  {line}" for line in list(lines)[:_MOST_SHOWN]]
    more = [f"  and {len(lines) - _MOST_SHOWN} more"] if len(lines) > _MOST_SHOWN else []
    return "\n".join([*shown, *more])


def cure(names: Collection[str]) -> str:
    """What leaves tasks out, ready to be typed where they are few."""
    if len(names) > _MOST_SHOWN:
        return "leave them out with --env.skip_tasks"
    plain = all(_PLAIN.fullmatch(name) for name in names)
    value = ",".join(names) if plain else shlex.quote(json.dumps(list(names)))
    return f"leave them out with --env.skip_tasks {value}"
