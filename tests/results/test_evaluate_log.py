"""metrics.json and samples.jsonl."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.errors import StoreError
from environments.records import Ending
from environments.results.evaluate_log import sample_from_attempt, write_evaluation

from .samples import failed, scored


def test_both_files_have_the_form_people_know(tmp_path: Path) -> None:
    write_evaluation(
        tmp_path / "evals",
        name="toy",
        model_name="m",
        metrics={"eval/pass_rate": 0.5, "odd": float("nan")},
        samples=[{"any": {"thing", "else"}}, sample_from_attempt(scored())],
        start_time=10.0,
        end_time=12.5,
        generation_parameters={"temperature": 0.3, "api_key": "hush"},
    )
    document = json.loads((tmp_path / "evals" / "metrics.json").read_text())
    assert document == {
        "config_general": {
            "model_name": "m",
            "total_evaluation_time_seconds": 2.5,
            "generation_parameters": {"temperature": 0.3, "api_key": "***"},
        },
        "results": {
            "toy": {"eval/pass_rate": 0.5, "odd": None},
            "all": {"eval/pass_rate": 0.5, "odd": None},
        },
    }
    lines = (tmp_path / "evals" / "samples.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"any": ["else", "thing"]} and len(lines) == 2
    assert sorted(p.name for p in (tmp_path / "evals").iterdir()) == ["metrics.json", "samples.jsonl"]


def test_a_failure_while_writing_leaves_the_earlier_files(tmp_path: Path) -> None:
    def write(samples: Any) -> None:
        write_evaluation(tmp_path, name="t", model_name="m", metrics={}, samples=samples)

    def breaking() -> Iterator[dict[str, Any]]:
        yield {"a": 1}
        raise RuntimeError("of the user's")

    write([{"first": 1}])
    with pytest.raises(RuntimeError):
        write(breaking())
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"first": 1}
    assert len(list(tmp_path.iterdir())) == 2
    write(None)
    assert json.loads((tmp_path / "samples.jsonl").read_text()) == {"first": 1}
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file is a file"):
        write_evaluation(tmp_path / "file", name="t", model_name="m", metrics={}, samples=[])


def test_a_sample_says_what_became_of_its_attempt() -> None:
    attempt = scored("fix-git", 2, ending=Ending.MAX_TURNS)
    attempt.item = {"category": "system", "task_name": "Fix git"}
    sample = sample_from_attempt(attempt)
    assert sample["task_name"] == "Fix git" and sample["category"] == "system"
    assert sample["passed"] is True and sample["reward"] == 1.0 and sample["turns_used"] == 1
    assert sample["finished_naturally"] is False and sample["attempt"] == 2
    assert sample["messages"][0]["content"] == "do" and "error" not in sample
    bad = sample_from_attempt(failed("x"))
    assert bad["error"] == "ServerUnavailable: no answer" and bad["passed"] is False
    assert bad["task_name"] == "x" and "category" not in bad
