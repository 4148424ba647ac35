"""Statistics against brute force."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.records import Verdict
from environments.results.metrics import (
    Planned,
    bootstrap_interval,
    effective_size,
    evaluation_metrics,
    mean,
    pass_at_k,
    pass_hat_k,
    passed,
    standard_error,
    summary,
    wilson_interval,
)

from .samples import failed, scored


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_and_pass_hat_k_are_means_over_all_subsets(
    results: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(results)))
    subsets = list(itertools.combinations(results, k))
    assert pass_at_k(len(results), sum(results), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    assert pass_hat_k(len(results), sum(results), k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=20))
def test_the_standard_error_of_single_values_is_the_textbook_one(values: list[float]) -> None:
    expected = statistics.stdev(values) / math.sqrt(len(values))
    assert standard_error([[value] for value in values]) == pytest.approx(expected, abs=1e-9)


def test_copies_in_a_cluster_do_not_shrink_the_standard_error() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0]
    single = standard_error([[value] for value in values])
    assert standard_error([[value] * 10 for value in values]) == pytest.approx(single)
    assert standard_error([[1.0, 0.0]]) is None


@given(st.integers(1, 60), st.data())
def test_the_wilson_interval_solves_its_equation(total: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, total))
    interval = wilson_interval(count, total)
    assert interval is not None
    share, z = count / total, 1.959963984540054
    for bound in interval:
        if 0 < bound < 1:
            assert (share - bound) ** 2 == pytest.approx(z * z * bound * (1 - bound) / total, abs=1e-9)
    assert 0 <= interval[0] <= share <= interval[1] <= 1
    assert wilson_interval(0, 0) is None


def test_the_bootstrap_interval_matches_the_exact_distribution() -> None:
    clusters = [[0.0], [1.0, 1.0], [0.5], [0.25]]
    sums = [(sum(values), len(values)) for values in clusters]
    exact = sorted(
        sum(total for total, _ in drawn) / sum(count for _, count in drawn)
        for drawn in itertools.product(sums, repeat=len(sums))
    )
    interval = bootstrap_interval(clusters, resamples=20_000)
    assert interval is not None
    assert interval[0] == pytest.approx(exact[int(0.025 * len(exact))], abs=0.06)
    assert interval[1] == pytest.approx(exact[int(0.975 * len(exact))], abs=0.06)
    assert interval == bootstrap_interval(clusters, resamples=20_000)
    assert bootstrap_interval([[1.0, 0.0]]) is None


def test_the_bootstrap_of_many_items_is_bounded() -> None:
    assert bootstrap_interval([[float(n % 2)] for n in range(20_000)]) is not None


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (Verdict(1.0), True),
        (Verdict(0.99), False),
        (Verdict(0.3, passed=True), True),
        (Verdict(1.0, passed=False), False),
        (Verdict(None, passed=True), False),
    ],
)
def test_passed_is_the_verifiers_word_else_a_full_reward(verdict: Verdict, expected: bool) -> None:
    attempt = scored()
    attempt.verdicts = [Verdict(0.0), verdict]
    assert passed(attempt) is expected


def test_errors_count_in_one_rate_and_not_in_the_other() -> None:
    attempts = [scored("a"), scored("b", reward=0.0), failed("c"), failed("d", try_number=0)]
    attempts.append(scored("d", try_number=1))
    found = summary(attempts, planned=8)
    assert (found["attempts"], found["finished"], found["valid"], found["passed"]) == (8, 4, 3, 2)
    assert found["pass_rate"] == 2 / 8 and found["valid_pass_rate"] == 2 / 3
    assert found["coverage"] == 3 / 8
    assert found["mean_reward"] == pytest.approx(2 / 3)
    assert found["pass_rate_interval"] == wilson_interval(2, 8)
    assert found["endings"] == {"stopped": 3, "error": 1}
    assert found["outcomes"] == {"scored": 3, "model_error": 1}
    assert found["pass_at"] == {}


def test_repeats_give_pass_at_k() -> None:
    attempts = [
        scored(item, n, reward=float(n < wins)) for item, wins in (("a", 1), ("b", 4)) for n in range(4)
    ]
    found = summary(attempts)
    assert found["pass_at"] == pytest.approx({1: 5 / 8, 2: (0.5 + 1) / 2, 4: 1.0})
    assert found["pass_hat"] == pytest.approx({1: 5 / 8, 2: 0.5, 4: 0.5})
    deff = (2 / 1 * (1.5**2 + 1.5**2) / 8**2) / (5 / 8 * 3 / 8 / 7)
    size = 8 / deff
    assert found["pass_rate_interval"] == pytest.approx(wilson_interval(size * 5 / 8, size))


@pytest.mark.parametrize(("reward", "rate"), [(1.0, 1.0), (0.0, 0.0)])
def test_items_that_agree_leave_an_interval(reward: float, rate: float) -> None:
    found = summary([scored(item, n, reward=reward) for item in "abcde" for n in range(4)])
    assert found["pass_rate_interval"] == wilson_interval(5 * rate, 5)
    assert found["mean_reward_interval"] is None


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=8))
def test_the_interval_of_repeats_has_a_width_and_holds_the_rate(items: list[list[bool]]) -> None:
    attempts = [
        scored(str(item), n, reward=float(won))
        for item, wins in enumerate(items)
        for n, won in enumerate(wins)
    ]
    found = summary(attempts)
    low, high = found["pass_rate_interval"]
    assert 0 <= low <= found["pass_rate"] + 1e-9 and found["pass_rate"] - 1e-9 <= high <= 1
    assert high - low > 0.01
    if all(len(wins) == 1 for wins in items):
        assert (low, high) == wilson_interval(found["passed"], len(attempts))


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 5))
def test_the_effective_size_of_independent_and_of_identical_attempts(wins: list[bool], repeats: int) -> None:
    assert effective_size([[float(won)] for won in wins]) == pytest.approx(len(wins))
    clusters = [[float(won)] * repeats for won in wins]
    m, n = len(wins), len(wins) * repeats
    if len(set(wins)) == 1:
        assert effective_size(clusters) == m
    else:  # Kish: the variance between m clusters over that of n attempts, both unbiased
        assert effective_size(clusters) == pytest.approx(n * (m - 1) / (n - 1))


def test_the_interval_of_repeats_is_that_of_the_standard_error() -> None:
    """One formula for how far a rate may be off: n / deff attempts have the variance between the items."""
    clusters = [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.0]]
    n, rate = 12, 0.5
    size = effective_size(clusters)
    assert rate * (1 - rate) / (n - 1) * n / size == pytest.approx((standard_error(clusters) or 0.0) ** 2)


def test_evaluation_metrics_have_the_names_people_know() -> None:
    attempts = [scored("a"), scored("b", reward=0.0), failed("c")]
    for attempt, category in zip(attempts, ["Data Science", "data-science", "security"], strict=True):
        attempt.item = {"category": category}
    metrics = evaluation_metrics(attempts, elapsed=12.5)
    assert metrics["eval/pass_rate"] == pytest.approx(1 / 3)
    assert metrics["eval/total_tasks"] == 3 and metrics["eval/passed_tasks"] == 1
    assert metrics["eval/total_attempts"] == 3 and metrics["eval/passed_attempts"] == 1
    assert metrics["eval/evaluation_time_seconds"] == 12.5
    assert metrics["eval/pass_rate_data_science"] == 0.5
    assert metrics["eval/pass_rate_security"] == 0.0
    assert all(isinstance(value, int | float) for value in metrics.values())


def test_nothing_gives_no_numbers_and_no_crash() -> None:
    assert evaluation_metrics([])["eval/pass_rate"] == 0.0
    assert summary([])["pass_rate"] is None and mean([]) is None


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3), st.sampled_from([None, 0.0, 0.5, 1.0])))
)
def test_rates_agree_with_counting(drawn: list[tuple[str, int, float | None]]) -> None:
    attempts = [failed(i, n) if reward is None else scored(i, n, reward=reward) for i, n, reward in drawn]
    final = {(i, n): reward for i, n, reward in drawn}
    found = summary(attempts)
    valid = [reward for reward in final.values() if reward is not None]
    assert found["attempts"] == len(final) and found["valid"] == len(valid)
    assert found["passed"] == valid.count(1.0)
    if valid:
        assert found["mean_reward"] == pytest.approx(sum(valid) / len(valid))
        assert found["valid_pass_rate"] == valid.count(1.0) / len(valid)
    if interval := found["pass_rate_interval"]:
        assert interval[0] - 1e-9 <= found["pass_rate"] <= interval[1] + 1e-9


def test_rates_by_difficulty_stand_beside_those_by_category() -> None:
    attempts = [scored("a", reward=1), scored("b", reward=0)]
    attempts[0].item, attempts[1].item = {"difficulty": "easy"}, {"difficulty": "very hard"}
    found = evaluation_metrics(attempts)
    assert found["eval/pass_rate_difficulty_easy"] == 1.0
    assert found["eval/pass_rate_difficulty_very_hard"] == 0.0
    assert set(summary(attempts)["difficulties"]) == {"easy", "very hard"}


def test_a_category_may_be_called_like_another_metric() -> None:
    attempts = [scored("a"), scored("b", reward=0.0), scored("c")]
    for attempt, category in zip(attempts, ["ci95_low", "difficulty_hard", "ci95_low"], strict=True):
        attempt.item = {"category": category, "difficulty": "hard"}
    metrics = evaluation_metrics(attempts, elapsed=1.0)
    assert metrics["eval/pass_rate_ci95_low"] < 2 / 3
    assert metrics["eval/pass_rate_category_ci95_low"] == 1.0
    assert metrics["eval/pass_rate_difficulty_hard"] == 2 / 3
    assert metrics["eval/pass_rate_category_difficulty_hard"] == 0.0


def test_tasks_and_attempts_are_counted_apart() -> None:
    attempts = [scored("a", 0), scored("a", 1, reward=0.0), scored("b", 0, reward=0.0), failed("b", 1)]
    metrics = evaluation_metrics(attempts)
    assert (metrics["eval/total_tasks"], metrics["eval/passed_tasks"]) == (2, 1)
    assert (metrics["eval/total_attempts"], metrics["eval/passed_attempts"]) == (4, 1)
    assert metrics["eval/pass_rate"] == 1 / 4


def test_every_rate_of_an_unfinished_run_counts_what_is_missing() -> None:
    attempts = [scored("a", 0), scored("a", 1), scored("b", 0)]
    environment = attempts[0].environment
    plan = [
        Planned(environment, name, 2, {"category": category, "difficulty": "hard"})
        for name, category in (("a", "x"), ("b", "x"), ("c", "x"), ("d", "y"))
    ]
    found, metrics = summary(attempts, planned=plan), evaluation_metrics(attempts, planned=plan)
    assert (found["attempts"], found["items"], found["pass_rate"]) == (8, 4, 3 / 8)
    assert found["categories"]["x"]["attempts"] == 6 and found["categories"]["y"]["pass_rate"] == 0.0
    assert metrics["eval/pass_rate_x"] == 3 / 6 and metrics["eval/pass_rate_y"] == 0.0
    assert metrics["eval/pass_rate_difficulty_hard"] == metrics["eval/pass_rate"]
    assert found["pass_at"] == pytest.approx({1: 3 / 8, 2: 2 / 4})
    assert found["valid_pass_rate"] == 1.0
    clusters = [[1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    size = effective_size(clusters)
    assert found["pass_rate_interval"] == wilson_interval(size * 3 / 8, size)
