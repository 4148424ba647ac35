"""Which groups make a batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from environments.trajectory_api.batching import PATIENCE, WINDOW, choose, largest_sum


@dataclass
class Entry:
    size: int
    env_id: int | None = None
    passed: int = 0


def sizes(*values: int) -> list[Entry]:
    return [Entry(value) for value in values]


def test_equal_groups_come_first_in_first_out() -> None:
    assert choose(sizes(4, 4, 4, 4), 8, {}) == [0, 1]


def test_too_few_wait() -> None:
    assert choose(sizes(4, 3), 8, {}) is None


def test_mixed_sizes_make_an_exact_batch_of_the_oldest() -> None:
    assert choose(sizes(3, 4, 5, 4), 8, {}) == [0, 2]
    assert choose(sizes(3, 4, 4, 4), 12, {}) == [1, 2, 3]


def test_sizes_that_never_fit_make_a_smaller_batch() -> None:
    assert choose(sizes(8, 8), 12, {}) == [0]


def test_the_oldest_is_not_passed_over_for_ever() -> None:
    queue = sizes(3, 4, 4, 4, 4)
    queue[0].passed = PATIENCE
    assert choose(queue, 16, {}) == [0, 1, 2, 3]


def test_minimum_is_kept_and_waited_for() -> None:
    queue = [*(Entry(2, 0) for _ in range(6)), Entry(2, 1)]
    chosen = choose(queue, 8, {1: 2})
    assert chosen == [0, 1, 2, 6]
    assert choose(queue[:6], 8, {1: 2}) is None


def test_a_minimum_is_found_behind_any_number_of_others() -> None:
    queue = [*(Entry(2, 0) for _ in range(WINDOW)), Entry(2, 1)]
    assert choose(queue, 4, {1: 2}) == [0, WINDOW]


queues = st.lists(
    st.builds(Entry, st.integers(1, 8), st.sampled_from([None, 0, 1, 2]), st.integers(0, 5)), max_size=14
)


@given(queues, st.integers(8, 20))
def test_a_batch_is_never_too_large_and_never_withheld(queue: list[Entry], batch: int) -> None:
    chosen = choose(queue, batch, {})
    total = sum(entry.size for entry in queue)
    if total < batch:
        assert chosen is None
        return
    assert chosen and len(set(chosen)) == len(chosen) and chosen == sorted(chosen)
    got = sum(queue[i].size for i in chosen)
    exact = any(
        sum(entry.size for entry in some) == batch
        for count in range(1, len(queue) + 1)
        for some in combinations(queue, count)
    )
    assert got <= batch
    if exact and queue[0].passed < PATIENCE:
        assert got == batch
    if queue[0].passed >= PATIENCE or not exact:
        assert chosen[0] == 0


@given(queues, st.integers(8, 20), st.integers(1, 4), st.integers(1, 4))
def test_minima_hold_up_to_whole_groups(queue: list[Entry], batch: int, first: int, second: int) -> None:
    minimum = {0: first, 1: second}
    chosen = choose(queue, batch, minimum)
    waiting = {env: sum(e.size for e in queue if e.env_id == env) for env in minimum}
    if any(waiting[env] < needed for env, needed in minimum.items()):
        assert chosen is None
    elif sum(entry.size for entry in queue) >= batch:
        assert chosen is not None
        assert sum(queue[i].size for i in chosen) <= batch


@given(st.sets(st.integers(1, 12), min_size=1, max_size=3), st.integers(1, 40))
def test_the_largest_sum_is_that_of_trying_all(sizes: set[int], target: int) -> None:
    reached = {0}
    for _ in range(target):
        reached |= {done + size for done in reached for size in sizes if done + size <= target}
    assert largest_sum(sizes, target) == max(reached)


def test_the_largest_sum_of_huge_sizes_takes_no_memory() -> None:
    assert largest_sum({3}, 10**18 + 1) == 10**18 - 1
    assert largest_sum({2, 3}, 10**18 + 1) == 10**18 + 1
