"""Processes of an instance as the host sees them, here without an instance."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from environments.sandboxes.singularity.process_table import kill_tree

BREEDER = """\
import os, sys
while True:
    if os.fork() == 0:
        os.write(1, b"%d\\n" % os.getppid())
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


@pytest.mark.parametrize("attempt", range(5))
def test_nothing_that_a_killed_process_starts_sees_another_parent(tmp_path: Path, attempt: int) -> None:
    with (tmp_path / "parents").open("wb") as output:
        breeder = subprocess.Popen(["python3", "-I", "-S", "-c", BREEDER], stdout=output)
    while not (tmp_path / "parents").stat().st_size:
        time.sleep(0.001)
    time.sleep(0.003 * attempt)
    kill_tree(breeder.pid)
    assert breeder.wait() == -9
    time.sleep(0.1)
    assert set((tmp_path / "parents").read_text().split()) == {str(breeder.pid)}


def test_killing_what_has_ended_does_no_harm() -> None:
    ended = subprocess.Popen(["true"])
    time.sleep(0.1)
    kill_tree(ended.pid)
    assert ended.wait() == 0
    kill_tree(ended.pid)
