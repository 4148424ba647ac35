"""Two results over the same tasks."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.command_line import main
from environments.results.compare import EXACT, compared, permutation_p, side_of
from environments.results.rows import Row, rows_of
from environments.results.store import RunStore

from .samples import manifest, scored


def rows(passes: dict[str, list[bool | None]]) -> list[Row]:
    """Attempts at tasks; None is one without a score."""
    return [
        Row(1, "1", item, n, passed=p, outcome="scored" if p is not None else "sandbox_error", tokens=10)
        for item, values in passes.items()
        for n, p in enumerate(values)
    ]


def test_only_scores_of_tasks_that_both_have_are_compared() -> None:
    a = side_of(rows({"x": [True, False], "y": [True], "z": [None], "w": [True]}), "a")
    b = side_of(rows({"x": [True, True], "y": [False, None], "z": [True]}), "b")
    found = compared(a, b)
    assert (a.attempts, a.valid, a.passed) == (5, 4, 3)
    assert dict(found.differences) == {"x": 0.5, "y": -1.0}
    assert found.difference == -0.25 and found.only_a == ["w"] and found.only_b == ["z"]


@pytest.mark.parametrize(
    ("better", "worse", "p"), [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (7, 1, 18 / 256), (3, 3, 1.0)]
)
def test_with_one_attempt_per_task_it_is_the_exact_test_of_mcnemar(better: int, worse: int, p: float) -> None:
    assert permutation_p([1.0] * better + [-1.0] * worse + [0.0] * 9) == pytest.approx(p)


def test_many_tasks_are_sampled_close_to_the_exact_value() -> None:
    n, k = 30, 20
    exact = 2 * sum(math.comb(n, i) for i in range(k, n + 1)) / 2**n
    assert n > EXACT and permutation_p([1.0] * k + [-1.0] * (n - k)) == pytest.approx(exact, abs=0.01)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=12))
def test_p_is_a_probability_and_the_same_both_ways(values: list[float]) -> None:
    p = permutation_p(values)
    assert 0 < p <= 1 and p == permutation_p([-value for value in values])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, solved in (("a", "x"), ("b", "xyz")):
        (tmp_path / name).mkdir()
        lines = [{"task_name": t, "item_id": t, "passed": t in solved, "outcome": "scored"} for t in "wxyz"]
        (tmp_path / name / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    printed = capsys.readouterr().out
    assert "pass rate B - A: +0.5000" in printed and "p = 0.5" in printed
    assert "better in B: 2\n  y  0.00 -> 1.00\n  z  0.00 -> 1.00\nbetter in A: 0" in printed
    assert "not known whether they changed, as a result does not say: 4" in printed
    assert main(["compare", str(tmp_path / "a")]) == 2
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "nowhere")]) == 2


def test_tasks_that_changed_are_named_and_the_others_compared_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever kind of file tells it."""
    for name, solved in (("a", "x"), ("b", "xyz")):
        hashes = {t: name if t in "xz" else "same" for t in "wxyz"}
        samples = [
            {"item_id": t, "passed": t in solved, "outcome": "scored", "item_hash": hashes[t]} for t in hashes
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in samples))
        with RunStore.open(tmp_path / name, manifest(), resume=True) as store:
            for t in "wxyz":
                attempt = scored(t, reward=float(t in solved), group_id=f"eval/{t}")
                attempt.provenance.item_hash = hashes[t]
                store.append(attempt)
    for end in ("", ".jsonl"):
        assert main(["compare", str(tmp_path / f"a{end}"), str(tmp_path / f"b{end}")]) == 0
        printed = capsys.readouterr().out
        assert "changed between A and B: 2 tasks;" in printed
        assert "need not be the agent's doing\n  x  1.00 -> 1.00\n  z  0.00 -> 1.00\n" in printed
        assert "pass rate B - A over the 2 tasks that did not change: +0.5000" in printed
        assert "  y  0.00 -> 1.00\n  z  0.00 -> 1.00  (the task changed)" in printed
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert "changed between" not in capsys.readouterr().out


def test_an_attempt_that_was_judged_for_the_new_task_is_one_at_it(tmp_path: Path) -> None:
    old, new = scored("x"), scored("x")
    new.provenance.item_hash = "other"
    old.verdicts.append(replace(old.verdicts[0], evidence={"item_hash": "other"}))
    sides = [side_of(rows_of([attempt]), "") for attempt in (old, new)]
    assert compared(*sides).changed == []
