"""Which waiting groups make the next batch. Pure; no clock, no storage.

A group is never split. A batch has exactly the size that the trainer asked for where the oldest groups
allow it, else the largest below it. Enough sequences always make a batch, whatever the sizes of the
groups, so no mix of environments can get stuck.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

PATIENCE = 4
"""Times the oldest group may be passed over for an exact batch before a smaller one takes it along."""

WINDOW = 4096
"""Oldest groups looked at for one batch, beyond those that fill a minimum."""


class Waiting(Protocol):
    """What batching needs to know of a group."""

    @property
    def size(self) -> int:
        """Members it counts as."""
        ...

    @property
    def env_id(self) -> int | None:
        """Environment it came from."""
        ...

    @property
    def passed(self) -> int:
        """Times it was passed over while it was the oldest."""
        ...


def choose(queue: Sequence[Waiting], batch_size: int, minimum: Mapping[int, int]) -> list[int] | None:
    """Positions in ``queue`` (oldest first) of the next batch, in order; None where it must wait.

    ``minimum`` gives for some environments how many members a batch has of them at least. Their sum is
    at most ``batch_size``.
    """
    if sum(group.size for group in queue) < batch_size:
        return None
    fixed = _minimum(queue, batch_size, minimum)
    if fixed is None:
        return None
    left = batch_size - sum(queue[i].size for i in fixed)
    rest = [i for i in range(min(len(queue), WINDOW)) if i not in fixed and queue[i].size <= left]
    sizes = [queue[i].size for i in rest]
    reachable = _reachable(sizes, left)
    impatient = bool(rest) and rest[0] == 0 and queue[0].passed >= PATIENCE
    if impatient:
        taken = [0, *(1 + i for i in _best(sizes[1:], reachable[1:], left - sizes[0]))]
    elif reachable[0] >> left & 1 or not rest or fixed:
        taken = _best(sizes, reachable, left)
    else:
        taken = [0, *(1 + i for i in _best(sizes[1:], reachable[1:], left - sizes[0]))]
    chosen = sorted(fixed | {rest[i] for i in taken})
    return chosen or None


def _minimum(queue: Sequence[Waiting], batch_size: int, minimum: Mapping[int, int]) -> set[int] | None:
    """The oldest groups of each environment that fill its minimum; None where one cannot yet."""
    have = dict.fromkeys(minimum, 0)
    taken: dict[int, list[int]] = {env: [] for env in minimum}
    for i, group in enumerate(queue):
        env = group.env_id
        if env is not None and env in minimum and have[env] < minimum[env]:
            have[env] += group.size
            taken[env].append(i)
    if any(have[env] < needed for env, needed in minimum.items()):
        return None
    while sum(have.values()) > batch_size:  # whole groups exceed the batch: the largest excess gives way
        env = max((e for e in have if taken[e]), key=lambda e: (have[e] - minimum[e], have[e]))
        have[env] -= queue[taken[env].pop()].size
    return {i for positions in taken.values() for i in positions}


def _reachable(sizes: Sequence[int], target: int) -> list[int]:
    """Entry ``i``: bit ``s`` is set where some of ``sizes[i:]`` sum to ``s``, up to ``target``."""
    limit = (1 << (target + 1)) - 1
    sums = [1] * (len(sizes) + 1)
    for i in range(len(sizes) - 1, -1, -1):
        sums[i] = (sums[i + 1] | sums[i + 1] << sizes[i]) & limit
    return sums


def _best(sizes: Sequence[int], reachable: Sequence[int], target: int) -> list[int]:
    """Positions that sum to ``target``, or the largest sum below; the oldest that allow it."""
    left = (reachable[0] & ((1 << (target + 1)) - 1)).bit_length() - 1
    taken = []
    for i, size in enumerate(sizes):
        if size <= left and reachable[i + 1] >> (left - size) & 1:
            taken.append(i)
            left -= size
    return taken


MOST_SUMS = 1 << 20
"""Batch size above which sums are not searched for."""


def largest_sum(sizes: Collection[int], target: int) -> int:
    """The largest number up to ``target`` that groups of these sizes, as often as need be, sum to."""
    if target > MOST_SUMS:
        return target - target % math.gcd(*sizes)  # reached wherever the sizes are small beside the target
    limit = (1 << (target + 1)) - 1
    sums = 1
    for size in sizes:
        step = size
        while step <= target:  # one, two, four, ... more of this size
            sums |= sums << step & limit
            step *= 2
    return sums.bit_length() - 1
