"""Runs in the forms of the field: ATIF trajectories and Harbor's job directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.command_line import main
from environments.results.atif import trajectory_of
from environments.results.store import RunStore

from .samples import failed, manifest, scored

CALL = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "List."}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "terminal", "content": "a b"},
    {"role": "assistant", "content": "a and b"},
]


def test_a_conversation_becomes_steps_with_what_was_observed() -> None:
    found = trajectory_of(scored(messages=CONVERSATION), [{"type": "function"}])
    assert [step["source"] for step in found["steps"]] == ["system", "user", "agent", "agent"]
    assert [step["step_id"] for step in found["steps"]] == [1, 2, 3, 4]
    acting = found["steps"][2]
    assert acting["reasoning_content"] == "hm" and acting["metrics"]["completion_tokens"] == 7
    assert acting["tool_calls"][0]["arguments"] == {"command": "ls"}
    assert acting["observation"]["results"] == [{"source_call_id": "c1", "content": "a b"}]
    assert (
        found["final_metrics"]["total_completion_tokens"] == 7 and found["final_metrics"]["total_steps"] == 4
    )
    assert found["agent"]["tool_definitions"] == [{"type": "function"}]


@given(st.text(max_size=20) | st.none() | st.lists(st.integers(), max_size=2))
def test_arguments_that_are_no_object_are_kept(arguments: Any) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    found = trajectory_of(scored(messages=[message]))["steps"][0]["tool_calls"][0]["arguments"]
    assert isinstance(found, dict)


def a_run(directory: Path) -> Path:
    run = directory / "run"
    with RunStore.open(run, manifest(), resume=True) as store:
        store.append(scored("a/b", messages=CONVERSATION))
        store.append(scored("c", attempt=1, reward=0.5))
        store.append(failed("d"))
    return run


def test_a_run_becomes_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, job = a_run(tmp_path), tmp_path / "jobs" / "one"
    for _ in range(2):  # again over an earlier one
        assert main(["export", "harbor", str(run), str(job)]) == 0
    assert "3 trials" in capsys.readouterr().out
    assert sorted(p.name for p in job.iterdir()) == ["a-b__0", "c__1", "config.json", "d__0", "result.json"]
    result = json.loads((job / "a-b__0" / "result.json").read_text())
    assert result["verifier_result"]["rewards"] == {"reward": 1.0} and result["exception_info"] is None
    assert (job / "c__1" / "verifier" / "reward.txt").read_text() == "0.5\n"
    broken = json.loads((job / "d__0" / "result.json").read_text())
    assert broken["verifier_result"] is None
    assert broken["exception_info"]["exception_type"] == "ServerUnavailable"
    stats = json.loads((job / "result.json").read_text())["stats"]
    assert (stats["n_completed_trials"], stats["n_errored_trials"]) == (3, 1)
    assert stats["evals"]["hermes__m"]["reward_stats"]["reward"] == {"1": ["a-b__0"], "0.5": ["c__1"]}


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").write_text("x")
    assert main(["export", "harbor", str(run), str(tmp_path / "mine")]) == 2
    assert main(["export", "harbor", str(tmp_path), str(tmp_path / "job")]) == 2
    assert main(["export", "harbor", str(run)]) == 2


def test_items_of_like_names_and_of_long_ones_are_trials_of_their_own(tmp_path: Path) -> None:
    names = ["a,b", "a b", "A b", "y" * 255, "ü" * 120]
    with RunStore.open(tmp_path / "run", manifest(), resume=True) as store:
        for name in names:
            for attempt in range(2):
                store.append(scored(name, attempt=attempt))
    assert main(["export", "harbor", str(tmp_path / "run"), str(tmp_path / "job")]) == 0
    tasks = [json.loads(p.read_text())["task_name"] for p in tmp_path.glob("job/*/result.json")]
    assert sorted(tasks) == sorted(names * 2)


def test_the_job_of_another_run_is_left_alone(tmp_path: Path) -> None:
    run, job = a_run(tmp_path), tmp_path / "job"
    job.mkdir()
    for content in ('{"id": "of another run"}', "no JSON", "[]"):
        (job / "result.json").write_text(content)
        assert main(["export", "harbor", str(run), str(job)]) == 2
        assert [path.name for path in job.iterdir()] == ["result.json"]


def test_what_cannot_be_written_or_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = a_run(tmp_path), tmp_path / "file"
    file.write_text("x")
    (tmp_path / "job" / "result.json").mkdir(parents=True)
    for target in (file, file / "job", Path("/proc/job"), tmp_path / ("a" * 300), tmp_path / "job"):
        assert main(["export", "harbor", str(run), str(target)]) in (1, 2)
        out = capsys.readouterr()
        assert out.err.startswith("error: ") and out.err.count("\n") == 1 and not out.out


def test_a_run_without_attempts_is_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunStore.open(tmp_path / "run", manifest(), resume=True):
        pass
    assert main(["export", "harbor", str(tmp_path / "run"), str(tmp_path / "job")]) == 1
    assert "has no attempt: there is nothing to export" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()
