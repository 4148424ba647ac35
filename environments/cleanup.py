"""``cleanup_all_environments``: gives back every sandbox of this process, for code that ends early.

Rollouts release their sandboxes themselves; this is for an ``evaluate()`` of one's own that catches
``KeyboardInterrupt``, and for notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from environments.rollout import Rollout


def cleanup_all_environments() -> int:
    """Release the sandboxes of all rollouts of this process that still live; how many there were.

    Waits for it, except on the event loop outside of user code, where that is impossible: there the
    release goes on in the background, and the end of the run waits for it.
    """
    from environments import plain_calls  # with what it needs at 150 ms too slow for --help
    from environments.rollout import live_rollouts

    by_loop: dict[AbstractEventLoop, list[Rollout]] = {}
    for rollout in live_rollouts():
        by_loop.setdefault(rollout.scope.loop, []).append(rollout)
    for loop, rollouts in by_loop.items():
        if not loop.is_running():  # it has ended, and all of its sandboxes with it
            continue
        try:
            plain_calls.call(_release(rollouts), loop)
        except RuntimeError:
            for rollout in rollouts:
                rollout.release_soon()
    return sum(map(len, by_loop.values()))


async def _release(rollouts: list[Rollout]) -> None:
    import asyncio

    await asyncio.gather(*(rollout.release() for rollout in rollouts))
