"""What all tests share."""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

# The machines that run the tests are noisy; a slow example says nothing.
settings.register_profile("project", deadline=None)
settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    """Programs that tests start heed signals, though nohup or a shell's background job has us ignore some."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are laid out alike whatever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "140")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of sandboxes count processes of the whole machine, so they never run beside each other. Those
    with real servers share them, so they stay together too."""
    for item in items:
        if "sandboxes" in item.path.parts:
            item.add_marker(pytest.mark.xdist_group("sandboxes"))
        elif item.get_closest_marker("integration"):
            item.add_marker(pytest.mark.xdist_group("servers"))
