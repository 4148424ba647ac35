"""Reads files of public cases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_cases(path: Path) -> Iterator[dict[str, Any]]:
    """The cases, each with its tools."""
    tools: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "value" in entry:
            tools[entry["tools"]] = entry["value"]
        elif "id" in entry:
            yield entry | {"tools": tools.get(entry.get("tools", ""))}
