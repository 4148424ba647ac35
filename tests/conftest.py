"""What all tests share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are laid out alike whatever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "140")
