"""What has changed between a run and its resume is said: items, the environment's code, the version."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import environments
from environments.command_line import main
from environments.source_code import changed_files, code_of, sources_of, version_of
from environments.terminal_test_env.terminal_test_env import TerminalTestEnv

ENVIRONMENT = """
from {helper} import score

from environments.base_env import BaseEnv, BaseEnvConfig
from environments.config import APIServerConfig


class Env(BaseEnv):
    name = "changing"

    @classmethod
    def config_init(cls):
        config = BaseEnvConfig(use_wandb=False, progress="none", group_size=1, total_steps=2)
        return config, [APIServerConfig(server_type="nop")]

    async def setup(self):
        self.drawn = 0

    async def get_next_item(self):
        self.drawn += 1
        return {{"id": f"i{{self.drawn}}", "text": "first"}}

    async def collect_trajectory(self, item):
        return {{"tokens": [1], "masks": [1], "scores": score(), "messages": []}}, []

    async def evaluate(self, *args, **kwargs):
        text = self.config.wandb_name
        return await self.evaluate_items([{{"id": f"i{{n}}", "text": text}} for n in range(2)])
"""


class Place:
    """An environment in a file, and its grader in another one beside it."""

    def __init__(self, directory: Path) -> None:
        helper = f"grader_of_{directory.name.replace('-', '_')}"
        self.grader = directory / f"{helper}.py"
        self.grader.write_text("def score():\n    return 1.0\n")
        self.file = directory / f"changing_{directory.name.replace('-', '_')}.py"
        self.file.write_text(ENVIRONMENT.format(helper=helper))
        self.directory = directory

    def run(self, workflow: str, *options: str) -> int:
        where = {"evaluate": "data_dir_to_save_evals", "process": "data_path_to_save_groups"}[workflow]
        out = str(self.directory / ("evals" if workflow == "evaluate" else "out.jsonl"))
        return main([str(self.file), workflow, f"--env.{where}", out, *options])


class Said:
    """What was said since it was asked last, by the display or the log."""

    def __init__(self, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self.capsys, self.caplog = capsys, caplog

    def __call__(self) -> str:
        text = self.capsys.readouterr().err + self.caplog.text
        self.caplog.clear()
        return text


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Said:
    return Said(capsys, caplog)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("workflow", ["evaluate", "process"])
def test_a_changed_grader_is_said_at_resume(place: Place, workflow: str, said: Said) -> None:
    assert place.run(workflow) == 0
    assert place.run(workflow) == 0
    assert "has changed" not in said()
    place.grader.write_text("def score():\n    return 0.0\n")
    for _ in range(2):  # as long as they are there
        assert place.run(workflow) == 0
        text = said()
        assert f"the environment's code ({place.grader.name}) has changed since 2 finished attempts" in text
        assert "hermes-env rescore" in text


def test_a_changed_item_is_said_once(place: Place, said: Said) -> None:
    assert place.run("evaluate", "--env.wandb_name", "one", "--env.attempts", "2") == 0
    said()
    assert place.run("evaluate", "--env.wandb_name", "two", "--env.attempts", "2") == 0
    text = said()
    assert text.count("i0 has changed since the earlier run: its finished attempts there (2)") == 1
    assert text.count("i1 has changed") == 1


def test_another_version_of_the_framework_is_said(
    place: Place, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.run("evaluate") == 0
    monkeypatch.setattr(environments, "__version__", "99.0")
    assert place.run("evaluate") == 0
    assert "2 finished attempts were made with version" in said()


def test_classes_are_found_again() -> None:
    module = "environments.terminal_test_env.terminal_test_env"
    assert code_of(TerminalTestEnv) == f"{module}:TerminalTestEnv"
    assert list(sources_of(TerminalTestEnv)) == [f"{module.replace('.', '/')}.py"]

    class Local:
        pass

    assert code_of(Local) == ""


def test_versions_depend_on_every_file() -> None:
    one: dict[str, Any] = {"a.py": "1", "b.py": "2"}
    assert version_of({}) == "" and version_of(one) == version_of(dict(reversed(one.items())))
    assert version_of(one) != version_of({**one, "b.py": "3"})
    assert changed_files(one, {"a.py": "1", "b.py": "3", "c.py": "4"}) == ["b.py"]
