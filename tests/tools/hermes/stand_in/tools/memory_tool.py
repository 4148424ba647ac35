"""State that Hermes Agent's own loop would hold."""

from __future__ import annotations


class MemoryStore:
    def __init__(self) -> None:
        self.entries: list[str] = []

    def load_from_disk(self) -> None:
        self.entries = ["loaded"]
