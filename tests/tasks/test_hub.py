"""Datasets of the Hub through the real libraries, against a server in the Hub's shape.

Each case is a process of its own: the libraries read their settings when they are imported.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.errors import ConfigError
from environments.tasks.sources import load_tasks
from tasks.hub_server import Hub, serving
from tasks.test_sources import ROW

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("datasets") is None, reason="the extra 'datasets' is not installed"
    ),
]
NAME = "NousResearch/terminal-bench-2"
PROGRAM = """
import sys
from pathlib import Path
from environments.errors import ConfigError
from environments.tasks.sources import load_tasks
source, split, revision, cache = sys.argv[1:]
try:
    found = load_tasks(source, split=split, revision=revision or None, cache=Path(cache))
except ConfigError as error:
    sys.exit(f"ConfigError: {error}")
print(found.revision, *(task.name for task in found.tasks))
"""


def table(*names: str) -> bytes:
    import pyarrow
    import pyarrow.parquet

    rows = [{**ROW, "task_name": name} for name in names]
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def load(hub: Hub, tmp_path: Path) -> Iterator[Any]:
    with serving(hub) as address:

        def run(source: str, *, split: str = "train", revision: str = "", **variables: str) -> str:
            own = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
            root = str(Path(__file__).resolve().parents[2])
            environment = {**os.environ, **own, **variables, "PYTHONPATH": root}
            command = [sys.executable, "-c", PROGRAM, source, split, revision, str(tmp_path / "cache")]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
            return lines[-1] if lines else ""

        yield run


def test_a_dataset_at_the_newest_commit_and_at_older_ones(hub: Hub, load: Any) -> None:
    path = "data/train-00000-of-00001.parquet"
    old = hub.commit(NAME, {path: table("one"), "README.md": b"# x\n"}, "v1")
    new = hub.commit(NAME, {path: table("one", "two"), "README.md": b"# x\n"})
    assert load(NAME) == f"{new} one two"
    assert load(NAME, revision="v1") == f"{old} one"
    assert load(NAME, revision=old) == f"{old} one"


def test_each_way_to_be_wrong_has_words_of_its_own(hub: Hub, load: Any) -> None:
    hub.commit(NAME, {"data/train-00000-of-00001.parquet": table("one"), "README.md": b"# x\n"})
    said = load("NousResearch/terminal-bench2")
    assert "no dataset NousResearch/terminal-bench2" in said and f"did you mean {NAME}" in said
    assert "no revision 'v7'" in load(NAME, revision="v7")
    said = load(NAME, split="tarin")
    assert "no split 'tarin'" in said and "did you mean train" in said
    hub.down = True
    said = load(NAME)
    assert "ConfigError" in said and "cannot be loaded" in said and "on this machine works too" in said


def test_a_hub_that_cannot_be_reached_is_said(load: Any) -> None:
    assert "cannot be loaded" in load(NAME, HF_ENDPOINT="http://127.0.0.1:9")
    assert "cannot be loaded" in load(NAME, HF_HUB_OFFLINE="1")


def test_a_local_table(tmp_path: Path) -> None:
    (tmp_path / "tasks.parquet").write_bytes(table("one", "two"))
    found = load_tasks(str(tmp_path / "tasks.parquet"), cache=tmp_path / "cache")
    assert [task.name for task in found.tasks] == ["one", "two"]
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ConfigError, match="is no Parquet file"):
        load_tasks(str(tmp_path / "bad.parquet"), cache=tmp_path / "cache")
