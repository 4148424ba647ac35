"""Nothing that others have written is obeyed by a terminal."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasks.making import make_task

from environments.cli_output import emit, report, tell
from environments.command_line import main
from environments.errors import ConfigError
from environments.terminal_text import harmless, label

WILD = "\x1b[31mred\x9b\x07\r\x00\u202e\udcff"


@given(st.text(alphabet=st.characters(blacklist_categories=())))
def test_any_text_is_harmless(text: str) -> None:
    shown = harmless(text)
    shown.encode()
    assert not any(ord(character) < 32 and character not in "\t\n" for character in shown)
    assert "\x9b" not in shown and "\x7f" not in shown
    assert label(text).isprintable() or not any(c in label(text) for c in "\t\n\r\x1b")


def test_bytes_that_are_no_text_are_shown_as_bytes() -> None:
    assert harmless("lat\udce9n \ud800") == "lat\\xe9n \\ud800"


def test_what_is_printed_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    emit(WILD + "\n")
    tell(WILD + "\n")
    report(ConfigError(f"a task {WILD}"))
    told = capsys.readouterr()
    for text in (told.out, told.err):
        assert "\\x1b[31mred" in text and not set(text) & set(WILD) - set("[31mred")


def test_what_is_logged_is_harmless() -> None:
    code = (
        "import logging; from environments.cli import set_up_logging; set_up_logging('INFO'); "
        "logging.getLogger('environments.x').warning('%s', chr(27) + '[31mred')"
    )
    root = Path(__file__).resolve().parents[1]
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert "\\x1b[31mred" in ended.stderr and "\x1b" not in ended.stderr
    assert logging.getLogger("environments") is not None


def test_names_of_tasks_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x[/bold]", "esc\x1b[31mred\nline", "[red]y"):
        make_task(tmp_path / name)
    assert main(["tasks", "check", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("x[/bold]:", "esc\\x1b[31mred\\nline:", "[red]y:"):
        assert name in lines
