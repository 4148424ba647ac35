from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.tools.base import ToolSettings
from environments.tools.browser import chromium
from environments.tools.browser.chromium import Way, find_program, missing, variables, write_launcher
from environments.tools.browser.settings import BrowserSettings
from environments.tools.browser.tools import TOOLS, requirement


def program(directory: Path, name: str, text: str = "#!/bin/sh\n") -> Path:
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_browser_is_found_by_path_and_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_program(None) is None
    assert "apt-get install chromium" in (missing(None) or "")
    mine = program(tmp_path, "google-chrome")
    assert find_program(None) == str(mine)
    assert find_program(str(mine)) == str(mine)
    assert "'/nowhere/chrome' is no program" in (missing("/nowhere/chrome") or "")
    mine.unlink()
    own = tmp_path / ".cache/ms-playwright/chromium-1200/chrome-linux"
    own.mkdir(parents=True)
    mine = program(own, "chrome")
    assert find_program(None) == str(mine)


def test_a_missing_part_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ToolSettings(browser=BrowserSettings(path="/nowhere"))
    monkeypatch.setattr("environments.tools.browser.tools.find_spec", lambda name: None)
    assert "hermes-environments[browser]" in (requirement(settings) or "")
    monkeypatch.setattr("environments.tools.browser.tools.find_spec", lambda name: object())
    assert "browser_path" in (requirement(settings) or "")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users may look into, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_launcher_gives_a_profile_and_drops_rights(open_directory: Path) -> None:
    tmp_path = open_directory
    shown = program(tmp_path, "browser", '#!/bin/sh\nid -u; echo "$HOME"; for a do echo "$a"; done\n')
    unused = tmp_path / "unused"
    unused.mkdir()
    user = chromium.NOBODY if os.geteuid() == 0 else 0
    launcher = write_launcher(tmp_path, 3, str(shown), Way(user, True, None))
    given = ["--headless", f"--user-data-dir={unused}", "a b"]
    lines = subprocess.run([launcher, *given], capture_output=True, text=True, check=True).stdout.splitlines()
    profile = str(tmp_path / ".profile-3")
    assert lines == [str(user or os.geteuid()), profile, *given, f"--user-data-dir={profile}"]
    assert not unused.exists()


def test_the_browser_learns_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXA_API_KEY", "k")
    assert "EXA_API_KEY" not in variables()
    assert "PATH" in variables()


def test_there_is_a_tool_for_each_name() -> None:
    assert {tool.name for tool in TOOLS} >= {f"browser_{n}" for n in ("navigate", "cdp", "dialog", "press")}
