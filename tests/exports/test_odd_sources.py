"""Exports of files that nobody of us wrote: whatever a message is made of, a row or a reason comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.command_line import main

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
calls = st.lists(
    st.fixed_dictionaries({}, optional={"id": anything, "function": anything}) | anything, max_size=2
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | anything},
    optional={
        "content": st.text(max_size=5) | st.lists(anything, max_size=2) | anything,
        "tool_calls": calls | anything,
        "tool_call_id": anything,
        "name": anything,
        "reasoning_content": anything,
    },
)
conversations = st.lists(messages | anything, max_size=5) | anything
groups = st.fixed_dictionaries(
    {
        "tokens": st.just([[1], [2]]),
        "masks": st.just([[1], [2]]),
        "scores": st.just([1.0, 0.0]) | anything,
        "messages": st.lists(conversations, min_size=2, max_size=2) | anything,
    },
    optional={"metadata": st.lists(anything, max_size=2) | anything, "tools": anything, "failed": anything},
)


@pytest.mark.parametrize("kind", ["sft", "dpo"])
@pytest.mark.parametrize("form", ["chat", "sharegpt"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(groups, min_size=1, max_size=2))
def test_any_group_gives_rows_or_reasons(tmp_path: Path, kind: str, form: str, rows: list[Any]) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--format", form, "--min-score=-1", "--max-tokens", "60"]
    for mode in ("--overwrite", "--append"):
        assert main(["export", kind, str(source), str(output), mode, *options]) in (0, 1, 2)
    text = output.read_text() if output.exists() else ""
    for line in text.splitlines():
        assert isinstance(json.loads(line), dict)


@pytest.mark.parametrize(
    "options", [["--min-score", "nan"], ["--max-score", "nan"], ["--min-difference", "nan"]]
)
def test_bounds_are_numbers(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", "dpo", str(tmp_path / "in"), str(tmp_path / "out"), *options])
    assert ended.value.code == 2


def test_bounds_have_something_between_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"tokens": [[1]], "masks": [[1]], "scores": [1.0], "messages": [[]]}) + "\n")
    options = ["--min-score", "2", "--max-score", "1"]
    assert main(["export", "sft", str(source), str(tmp_path / "out"), *options]) == 2
    assert "nothing lies between" in capsys.readouterr().err
