"""Named lists of tools, as Hermes Agent has them."""

from __future__ import annotations

LISTS = {
    "odd": ["noisy", "loud_exit", "nothing_of_the_kind"],
    "file": ["read_file"],
    "mixed": ["read_file", "note", "picky"],
    "needy": ["picky", "delegate_task"],
}


def get_toolset_names() -> list[str]:
    return list(LISTS)


def resolve_toolset(name: str) -> list[str]:
    return LISTS[name]
