"""What all tests share."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The machines that run the tests are noisy; a slow example says nothing.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are laid out alike whatever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "140")
