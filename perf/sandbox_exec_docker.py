"""Latency and CPU of one command in a container, beside the ``docker exec`` program.

    DOCKER_HOST=unix:///var/run/docker.sock python perf/sandbox_exec_docker.py IMAGE

Each command is ``true``, in one container. For 1, 16 and 64 commands at once it prints the median time
of a batch divided by its size, and the CPU of this process and its children per command. What the engine
itself uses is not counted.
"""

from __future__ import annotations

import asyncio
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import SandboxSpec
from environments.sandboxes.registry import create_backend

AT_ONCE = (1, 16, 64)
BATCHES = {1: 30, 16: 6, 64: 3}

Call = Callable[[], Awaitable[None]]


def cpu() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


async def batch(call: Call, at_once: int) -> tuple[float, float]:
    """Seconds and CPU seconds of one command in a batch."""
    used, begun = cpu(), time.perf_counter()
    await asyncio.gather(*(call() for _ in range(at_once)))
    return (time.perf_counter() - begun) / at_once, (cpu() - used) / at_once


async def compare(ours: Call, peer: Call) -> None:
    """Print one line for every number of commands at once; both take turns, as the machine's load varies."""
    for at_once in AT_ONCE:
        await asyncio.gather(ours(), peer())
        pairs = [(await batch(ours, at_once), await batch(peer, at_once)) for _ in range(BATCHES[at_once])]
        mine, mine_cpu, theirs, theirs_cpu = (
            statistics.median(pair[who][what] for pair in pairs) * 1000 for who in (0, 1) for what in (0, 1)
        )
        print(
            f"{at_once:3} at once: {mine:7.1f} ms, cpu {mine_cpu:5.1f} ms | "
            f"docker exec: {theirs:7.1f} ms, cpu {theirs_cpu:5.1f} ms | "
            f"ratio {mine / theirs:.2f}, cpu {mine_cpu / theirs_cpu:.2f}",
            flush=True,
        )


async def main() -> None:
    """Measure on the engine that ``DOCKER_HOST`` names."""
    program = shutil.which("docker")
    if len(sys.argv) != 2 or program is None:
        sys.exit("usage: sandbox_exec_docker.py IMAGE (the docker program must be in PATH)")
    backend = create_backend("docker", HermesAgentEnvConfig(docker_image=sys.argv[1]), "perf")
    try:
        await backend.check()
        begun = time.perf_counter()
        sandbox = await backend.create(SandboxSpec())
        print(f"create: {(time.perf_counter() - begun) * 1000:.0f} ms")

        async def ours() -> None:
            result = await sandbox.exec(["true"])
            if result.exit_code != 0:
                sys.exit(f"the command failed: {result}")

        async def peer() -> None:
            process = await asyncio.create_subprocess_exec(
                program, "exec", sandbox.id, "true", stdin=asyncio.subprocess.DEVNULL
            )
            if await process.wait() != 0:
                sys.exit("docker exec failed")

        await compare(ours, peer)
    finally:
        await backend.close()


if __name__ == "__main__":
    asyncio.run(main())
