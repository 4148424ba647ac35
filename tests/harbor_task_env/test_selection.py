"""One output and several selections: nothing of a larger run is lost, and all that reads it counts alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tasks.making import make_task

from environments.command_line import main
from environments.results.reading import read_attempts

REWARD = "/logs/verifier/reward.txt"
QUIET = '[environment]\nnetwork_mode = "no-network"\n'
NAMES = ("four", "one", "three", "two")


class Place:
    """Tasks and an evaluation of them, through the command line."""

    def __init__(self, directory: Path) -> None:
        self.tasks, self.run = directory / "tasks", directory / "run"
        for name in NAMES:
            settings = f'{QUIET}[metadata]\ncategory = "{"odd" if name in ("one", "three") else "even"}"\n'
            make_task(self.tasks / name, settings)
        self.options = ["--env.dataset_name", str(self.tasks), "--env.terminal_backend", "local"]
        self.options += ["--env.task_images", "replay", "--openai.server_type", "oracle"]
        self.options += ["--env.use_wandb", "false", "--env.progress", "none"]
        self.options += ["--env.data_dir_to_save_evals", str(self.run)]

    def evaluate(self, *more: str) -> int:
        return main(["harbor_task", "evaluate", *self.options, *more])

    def metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "metrics.json").read_text())
        return found

    def samples(self) -> list[str]:
        lines = (self.run / "samples.jsonl").read_text().splitlines()
        return sorted(json.loads(line)["item_id"] for line in lines)

    def fail(self, name: str) -> None:
        (self.tasks / name / "tests" / "test.sh").write_text(f"#!/bin/bash\necho 0 > {REWARD}\n")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_smaller_selection_takes_nothing_from_the_results(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.fail("one")
    assert place.evaluate() == 0
    whole = place.metrics()
    assert whole["results"]["all"]["eval/pass_rate"] == 0.75 and sorted(whole["covers"]["items"]) == [*NAMES]
    capsys.readouterr()
    for option in (["--env.limit", "2"], ["--env.task_filter", "t*"], ["--env.item_ids", "one"]):
        assert place.evaluate(*option) == 0
        text = capsys.readouterr().err
        chose = "1 (0 of 1 attempt passed)" if "one" in option else "2 ("
        assert f"all 4 items (4 attempts) of this output, of which this run chose {chose}" in text
        again = place.metrics()
        assert again["covers"]["items"] == whole["covers"]["items"] and place.samples() == [*NAMES]
        for name, value in whole["results"]["all"].items():
            assert again["results"]["all"][name] == value or name == "eval/evaluation_time_seconds"
    assert main(["show", str(place.run)]) == 0
    assert "4 rollouts, 3 passed" in capsys.readouterr().out
    assert place.evaluate() == 0
    assert "of this output, of which" not in capsys.readouterr().err


def test_selections_add_up_and_so_do_attempts(place: Place) -> None:
    assert place.evaluate("--env.task_filter", "one") == 0
    assert place.metrics()["results"]["all"]["eval/total_tasks"] == 1
    assert place.evaluate("--env.task_filter", "two", "--env.attempts", "2") == 0
    found = place.metrics()["results"]["all"]
    assert (found["eval/total_tasks"], found["eval/total_attempts"]) == (2, 3)
    assert found["eval/pass_rate_odd"] == found["eval/pass_rate_even"] == 1.0


def test_a_changed_task_that_is_not_chosen_is_said_and_stands_as_it_was(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.evaluate() == 0
    place.fail("one")
    capsys.readouterr()
    assert place.evaluate("--env.task_filter", "two") == 0
    assert "1 item (one) among them changed since: they count as they were" in capsys.readouterr().err
    assert place.metrics()["results"]["all"]["eval/pass_rate"] == 1.0
    assert place.evaluate("--env.task_filter", "one") == 0
    assert place.metrics()["results"]["all"]["eval/pass_rate"] == 0.75


def test_items_that_the_dataset_has_no_more_are_left_out_everywhere(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    place.fail("three")
    assert place.evaluate() == 0
    assert main(["export", "harbor", str(place.run), str(tmp_path / "job")]) == 0
    shutil.rmtree(place.tasks / "three")
    capsys.readouterr()
    assert place.evaluate() == 0
    gone = "left out: attempts at 1 item (three), which the dataset has no more"
    assert gone in capsys.readouterr().err
    found = place.metrics()
    assert found["results"]["all"]["eval/pass_rate"] == 1.0 and found["covers"]["left_out"] == ["three"]
    assert place.samples() == ["four", "one", "two"]
    for command, said in (
        (["show", str(place.run)], "3 rollouts, 3 passed"),
        (["show", str(place.run / "metrics.json")], "3 rollouts, 3 passed"),
        (["show", str(place.run / "attempts.jsonl")], "4 rollouts, 3 passed"),
        (["compare", str(place.run), str(place.run)], "3 of 3 attempts passed"),
        (["export", "harbor", str(place.run), str(tmp_path / "job")], "3 trials in"),
        (["export", "sft", str(place.run), str(tmp_path / "rows.jsonl")], "left out: 2 duplicate"),
    ):
        caplog.clear()
        assert main(command) == 0
        assert said in capsys.readouterr().out
        assert (gone in caplog.text) == ("attempts.jsonl" not in command[1])
    assert not (tmp_path / "job" / "three__0").exists() and (tmp_path / "job" / "two__0").is_dir()


def test_a_rescore_leaves_out_what_is_gone_and_says_what_it_cannot_judge(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = ("--env.keep_sandboxes", "all", "--env.kept_sandbox_lifetime", "300")
    assert place.evaluate(*kept, "--env.limit", "3") == 0  # four, one, three
    shutil.rmtree(place.tasks / "three")
    place.fail("one")
    run_id = next(iter(read_attempts(place.run / "attempts.jsonl"))).run_id
    capsys.readouterr()
    try:
        assert main(["rescore", str(place.run)]) == 0
        text = capsys.readouterr().out
        assert "2 of 2 attempts" in text and "one attempt 0: 1 -> 0" in text
        assert "left out: attempts at 1 item (three)" in text
        found = place.metrics()["results"]["all"]
        assert (found["eval/total_attempts"], found["eval/pass_rate"]) == (2, 0.5), "two was never planned"
        (place.tasks / "one" / "task.toml").write_text("[[[")
        assert main(["rescore", str(place.run)]) == 1
        text = capsys.readouterr().out
        assert "1 of 2 attempts" in text and "one attempt 0: " in text and "task.toml" in text
        assert place.metrics()["results"]["all"]["eval/total_attempts"] == 2
    finally:
        main(["sandboxes", "reap", "--run", run_id, "--backend", "local"])


def test_a_rescore_that_judges_nothing_writes_nothing(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert place.evaluate("--env.limit", "2") == 0
    names = ("metrics.json", "samples.jsonl", "attempts.jsonl", "items.json")
    before = {name: (place.run / name).read_bytes() for name in names}
    assert main(["rescore", str(place.run)]) == 1
    assert "0 of 2 attempts" in capsys.readouterr().out
    shutil.rmtree(place.tasks / "four")
    shutil.rmtree(place.tasks / "one")
    assert main(["rescore", str(place.run)]) == 1
    assert "left out: attempts at 2 items (four, one)" in capsys.readouterr().out
    assert {name: (place.run / name).read_bytes() for name in names} == before
