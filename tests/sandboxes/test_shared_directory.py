"""The directory that all runs share: made by the first, removed by the last, whenever they begin and end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from environments.errors import SandboxError
from environments.sandboxes.local import run_directory as local
from environments.sandboxes.shared_directory import SharedDirectory
from environments.sandboxes.singularity import run_directory as singularity

_COME_AND_GO = """
import random, sys, time
from environments.sandboxes.local import run_directory as local
from environments.sandboxes.singularity import run_directory as singularity

for number in range(int(sys.argv[1])):
    for module in (local, singularity):
        run = module.RunDirectory("run")
        time.sleep(random.random() * 0.002)
        (run.path / "mine").mkdir()
        if module is local:
            with open(run.user_ids, "a"):
                pass
            local.reap()
            local.sandbox_directories()
        else:
            singularity.dead_runs()
            singularity.all_runs()
        assert (run.path / "mine").is_dir()
        run.remove()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("module", [local, singularity])
def test_nothing_is_left_when_the_last_run_has_ended(module: object, place: Path) -> None:
    first, second = module.RunDirectory("a"), module.RunDirectory("b")  # type: ignore[attr-defined]
    first.remove()
    assert second.path.is_dir()
    second.remove()
    assert list(place.iterdir()) == []


def test_runs_that_come_and_go_at_once_never_lose_their_directory(place: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-c", _COME_AND_GO, "40"]
    runs = [subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for _ in range(4)]
    for run in runs:
        _, complaint = run.communicate(timeout=100)
        assert run.returncode == 0, complaint.decode()
    assert list(place.iterdir()) == []


def test_looking_for_sandboxes_leaves_no_trace(place: Path) -> None:
    local.reap()
    assert local.sandbox_directories() == []
    assert singularity.all_runs() == singularity.dead_runs() == []
    assert list(place.iterdir()) == []


def test_what_a_dead_run_left_goes_with_all_that_runs_share(place: Path) -> None:
    local.RunDirectory("dead").leave()
    assert len(list(place.iterdir())) == 1
    local.reap()
    assert list(place.iterdir()) == []


def test_it_stays_while_a_user_id_is_in_use_or_a_strange_file_is_in_it(place: Path) -> None:
    shared = SharedDirectory("shared", 0o700, shared_files=("ids",))
    with shared.held() as path:
        (path / "ids").touch()
        (path / "run").mkdir()
    holding = (
        "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 7); "
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", holding, str(path / "ids")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    (path / "run").rmdir()
    shared.tidy()
    assert (path / "ids").exists()
    holder.communicate()
    (path / "strange").touch()
    shared.tidy()
    assert path.exists()
    (path / "strange").unlink()
    shared.tidy()
    assert not path.exists()


def test_who_waited_for_a_directory_that_was_removed_makes_it_again(place: Path) -> None:
    shared = SharedDirectory("shared", 0o700)
    with shared.held() as path:
        waiting = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from environments.sandboxes.shared_directory import SharedDirectory\n"
                "with SharedDirectory('shared', 0o700).held() as path: (path / 'run').mkdir()",
            ],
            env={**os.environ, "TMPDIR": str(place), "PYTHONPATH": str(Path.cwd())},
        )
        while not _somebody_waits(path / ".lock") and waiting.poll() is None:
            pass
    assert waiting.wait(30) == 0
    assert (path / "run").is_dir()


def _somebody_waits(lock: Path) -> bool:
    inode = f":{lock.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


def test_a_place_that_cannot_be_used_is_named(place: Path) -> None:
    with pytest.raises(SandboxError, match="only this user"), _made(place, 0o755).held():
        pass
    with pytest.raises(SandboxError, match="can be made"), SharedDirectory("gone/away", 0o700).held():
        pass


def _made(place: Path, mode: int) -> SharedDirectory:
    shared = SharedDirectory("open", 0o700)
    shared.path.mkdir()
    shared.path.chmod(mode)
    return shared
