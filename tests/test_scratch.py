"""Temporary directories of killed processes are removed by the next, those in use are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from environments.scratch import scratch_directory

HOLD = """
from environments.scratch import scratch_directory
with scratch_directory("of-a-test-") as directory:
    print(directory, flush=True)
    input()
"""


def test_what_a_killed_process_left_goes_and_what_is_in_use_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    others = [tmp_path / "of-a-test-without-lock", tmp_path / "something-else"]
    for path in others:
        path.mkdir()
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        for _ in range(2)
    ]
    try:
        killed, used = (Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout)
        holders[0].kill()
        holders[0].wait()
        with scratch_directory("of-a-test-"):
            assert killed.is_dir()  # it is so young that its owner might not have locked it yet
        for path in (killed, used, *others):
            os.utime(path, (1, 1))
        with scratch_directory("of-a-test-") as own:
            assert Path(own).is_dir()
            assert not killed.exists() and used.is_dir() and all(path.is_dir() for path in others)
        assert not Path(own).exists()
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
