"""What an environment saves at a step comes back at that step or later."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.errors import UserCodeError
from environments.results.checkpoints import load_checkpoint, save_checkpoint


def test_the_latest_that_is_not_beyond_the_step(tmp_path: Path) -> None:
    directory = tmp_path / "env_checkpoints" / "e_0"
    assert load_checkpoint(directory, 5) == {}
    for step in (2, 4, 10):
        save_checkpoint(directory, step, {"iter": step})
    assert load_checkpoint(directory, 9) == {"iter": 4}
    assert load_checkpoint(directory, 10) == {"iter": 10}
    assert load_checkpoint(directory, 1) == {}


def test_a_broken_one_gives_way_to_an_older(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 2, {"iter": 2})
    (tmp_path / "step-4.json").write_text("{")
    assert load_checkpoint(tmp_path, 9) == {"iter": 2}


def test_only_dictionaries(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match="dictionary"):
        save_checkpoint(tmp_path, 1, [1])  # type: ignore[arg-type]
