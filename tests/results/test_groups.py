"""Groups: rows, failures, and the file that resume reads draw numbers from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from environments.config import HermesAgentEnvConfig
from environments.errors import StoreError
from environments.records import Ending, Outcome, Sequence, TrainingUse
from environments.results.groups import KEY_ORDER, GroupFile, group_from_attempts, use_in_training

from .samples import failed, scored


def test_an_attempt_without_tokens_becomes_a_marked_placeholder_row() -> None:
    group = group_from_attempts(3, [scored(reward=0.5)], include_messages=True)
    assert group["tokens"] == [[0]] and group["masks"] == [[-100]] and group["inference_logprobs"] == [[1.0]]
    assert group["scores"] == [0.5]
    assert group["overrides"] == [{"placeholder_tokens": True}]
    assert group["messages"][0][1]["content"] == "ok"  # type: ignore[index]
    assert tuple(group) == KEY_ORDER


def test_metadata_names_what_a_row_is() -> None:
    config = HermesAgentEnvConfig(extra_body={"api_key": "sk-very-secret"})
    (row,) = group_from_attempts(3, [scored(seed=9)], include_messages=False, config=config)["metadata"]
    assert row["draw"] == 3 and row["item_id"] == "a" and row["group_id"] == "g" and row["seed"] == 9
    assert row["model"] == "m" and row["turns"] == 1 and row["ending"] == "stopped"
    assert {"tools", "errors", "timings", "usage", "verdict", "schema_version", "outcome"} <= set(row)
    assert row["config"]["max_agent_turns"] == 30
    assert "very-secret" not in json.dumps(row)


def test_branches_of_an_attempt_are_rows_of_one_rollout() -> None:
    branches = [Sequence([1, 2], [-100, 2], [1.0, -0.5]), Sequence([1, 3], [-100, 3], [1.0, -0.1])]
    group = group_from_attempts(0, [scored(sequences=branches), scored(attempt=1)], include_messages=False)
    assert group["tokens"] == [[1, 2], [1, 3], [0]]
    assert group["inference_logprobs"] == [[1.0, -0.5], [1.0, -0.1], [1.0]]
    assert group["messages"] is None
    ids = [row["rollout_id"] for row in group["metadata"]]
    assert ids[0] == ids[1] != ids[2]
    assert group["overrides"] == [{}, {}, {"placeholder_tokens": True}]


def test_columns_of_the_users_own_row_are_kept() -> None:
    sequence = Sequence([1, 2], [-100, 2], [1.0, -0.5])
    row = {"advantages": [0.0, 2.0], "group_overrides": {"group_size": 2}, "overrides": {"temperature": 0.5}}
    group = group_from_attempts(
        0, [scored(sequences=[sequence], row=row), scored(attempt=1)], include_messages=False
    )
    assert group["advantages"] == [[0.0, 2.0], None]
    assert group["group_overrides"] == {"group_size": 2}
    assert group["overrides"] == [{"temperature": 0.5}, {"placeholder_tokens": True}]


def test_attempts_without_a_score_stand_beside_the_rows_and_the_last_try_counts() -> None:
    attempts = [failed(attempt=0, try_number=0), scored(attempt=0, try_number=1), failed(attempt=1)]
    group = group_from_attempts(0, attempts, include_messages=False)
    assert len(group["scores"]) == 1
    (entry,) = group["failed"]
    assert entry["attempt"] == 1 and entry["ending"] == "error" and entry["outcome"] == "model_error"
    assert entry["failures"][0]["message"] == "no answer" and entry["messages"] == []


def test_use_in_training() -> None:
    assert use_in_training(scored()) is TrainingUse.TRAIN
    assert use_in_training(scored(ending=Ending.CONTEXT_LENGTH)) is TrainingUse.TRAIN
    over = scored(ending=Ending.TOKEN_BUDGET)
    assert use_in_training(over, over_limit=TrainingUse.BASELINE) is TrainingUse.BASELINE
    assert use_in_training(failed()) is TrainingUse.EXCLUDE
    assert use_in_training(scored(reward=float("nan"))) is TrainingUse.EXCLUDE
    for outcome in Outcome:
        attempt = scored()
        attempt.outcome = outcome
        assert (use_in_training(attempt) is TrainingUse.EXCLUDE) == (outcome is not Outcome.SCORED)


def test_a_baseline_row_has_no_gradient() -> None:
    attempt = scored(ending=Ending.TOKEN_BUDGET)
    group = group_from_attempts(0, [attempt], include_messages=False, over_limit=TrainingUse.BASELINE)
    assert group["overrides"][0]["set_advantage_to_zero"] is True  # type: ignore[index]


def test_the_file_knows_its_finished_draws(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "out.jsonl"
    with GroupFile(path) as file:
        assert file.finished() == {}
        file.append(group_from_attempts(7, [scored(reward=0.25)], include_messages=True), 7)
        file.append(group_from_attempts(2, [failed("b")], include_messages=True), 2)
    with GroupFile(path) as file:
        finished = file.finished()
    assert set(finished) == {7, 2}
    assert finished[7]["item_hash"] == "hash-a" and finished[7]["scores"] == [0.25]
    assert finished[2]["rows"] == 0 and finished[2]["failed"] == 1 and finished[2]["item_id"] == "b"


def test_a_cut_last_line_is_repaired_and_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with GroupFile(path) as file:
        for draw in range(3):
            file.append(group_from_attempts(draw, [scored()], include_messages=True), draw)
    path.write_bytes(path.read_bytes()[:-20])
    with GroupFile(path) as file:
        assert set(file.finished()) == {0, 1}
        file.append(group_from_attempts(2, [scored()], include_messages=True), 2)
        assert set(file.finished()) == {0, 1, 2}
    assert [json.loads(line)["scores"] for line in path.read_text().splitlines()] == [[1.0]] * 3


def test_lines_of_atroposlib_are_tolerated(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"tokens": [[1]], "masks": [[1]], "scores": [1.0], "overrides": null}\n[1]\n{"broken\n')
    with GroupFile(path) as file:
        assert file.finished() == {}
        assert file.foreign_lines == 2


def test_a_users_own_group_gets_its_draw_number(tmp_path: Path) -> None:
    with GroupFile(tmp_path / "out.jsonl") as file:
        file.append({"tokens": [[1]], "masks": [[1]], "scores": [1.0]}, 4)
        assert file.finished()[4]["rows"] == 1


def test_starting_anew_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    for round_ in range(3):
        with GroupFile(path, resume=False) as file:
            file.append({"scores": [float(round_)]}, round_)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.1.jsonl", "out.2.jsonl", "out.jsonl"]
    assert json.loads((tmp_path / "out.1.jsonl").read_text())["scores"] == [0.0]


def test_a_foreign_file_is_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes\nwithout an end")
    with pytest.raises(StoreError, match="no file of results"):
        GroupFile(path).finished()
    assert path.read_text() == "my notes\nwithout an end"
    with pytest.raises(StoreError, match="directory"):
        GroupFile(tmp_path).finished()


@pytest.mark.parametrize("text", ["# notes\n\nmine\n", '{"q": 1}\n{"q": 2}\n', "import os\nimport sys\n"])
def test_a_foreign_file_of_whole_lines_is_left_untouched_too(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine"
    path.write_text(text)
    with pytest.raises(StoreError, match="no file of results"):
        GroupFile(path).finished()
    assert path.read_text() == text
