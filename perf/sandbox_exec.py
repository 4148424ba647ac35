"""Latency and CPU of one command in a sandbox of each backend, beside the bare engine.

    python perf/sandbox_exec.py [local] [docker] [podman] [ssh] [singularity] [modal] [daytona]

The engines are named by the variables of the integration tests (``.ci/start_engines.sh`` prints them).
Each command is ``true``. Beside it stands what one would use without us: for local a plain asyncio
subprocess, for docker and podman the program ``docker exec``, for ssh the program with a control master,
for singularity ``apptainer exec``, for modal and daytona their SDKs' own call on the same local server.

For 1, 16 and 64 commands at once in one sandbox, and for 16 that have one each, it prints medians of a
batch divided by its size, wall and CPU, and the ratios; both take turns, as the load of a machine varies.
CPU is that of this process and all that it starts, wherever it may count by a control group (root, version
1), else without what detaches itself; what a daemon uses is never counted, and what the local servers of
modal and daytona use always is, on both sides. The last line is the making of a sandbox.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from sandbox_peers import PEERS, Peer

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import NetworkPolicy, SandboxSpec
from environments.sandboxes.registry import create_backend

AT_ONCE = (1, 16, 64)
BATCHES = {1: 30, 16: 8, 64: 4}
APART = 16
CREATIONS = 8

Call = Callable[[], Awaitable[Any]]


class Meter:
    """CPU seconds used so far by this process and all that it has started."""

    def __init__(self) -> None:
        self._group = Path(f"/sys/fs/cgroup/cpuacct/perf-{os.getpid()}")
        try:
            self._group.mkdir()
            (self._group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:  # not root, or control groups of version 2
            self._group = Path()

    def read(self) -> float:
        """CPU seconds."""
        if self._group.name:
            os.sched_yield()  # the kernel counts a process that goes on only at its next tick
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(usage.ru_utime + usage.ru_stime for usage in used)

    def close(self) -> None:
        """Remove the group."""
        if self._group.name:
            (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
            self._group.rmdir()


@dataclass
class Cost:
    """Milliseconds of one call."""

    wall: float
    cpu: float


async def batch(meter: Meter, call: Call, at_once: int) -> Cost:
    """What one call costs in a batch."""
    used, begun = meter.read(), time.perf_counter()
    await asyncio.gather(*(call() for _ in range(at_once)))
    wall = time.perf_counter() - begun
    return Cost(wall / at_once * 1000, (meter.read() - used) / at_once * 1000)


def medians(costs: list[Cost]) -> Cost:
    """Medians of both, each for itself."""
    return Cost(statistics.median(c.wall for c in costs), statistics.median(c.cpu for c in costs))


async def compare(meter: Meter, name: str, ours: Call, peer_name: str, peer: Call) -> None:
    """Print one line for every number of commands at once."""
    for at_once in AT_ONCE:
        await asyncio.gather(ours(), peer())
        mine, theirs = [], []
        for _ in range(BATCHES[at_once]):
            mine.append(await batch(meter, ours, at_once))
            theirs.append(await batch(meter, peer, at_once))
        report(f"{name:11} {at_once:3} at once", medians(mine), peer_name, medians(theirs))


def report(what: str, mine: Cost, peer_name: str, theirs: Cost) -> None:
    """Print one comparison."""
    print(
        f"{what}: {mine.wall:7.1f} ms, cpu {mine.cpu:6.1f} ms | "
        f"{peer_name}: {theirs.wall:7.1f} ms, cpu {theirs.cpu:6.1f} ms | "
        f"ratio {mine.wall / theirs.wall:.2f}, cpu {mine.cpu / theirs.cpu:.2f}",
        flush=True,
    )


async def apart(meter: Meter, peer: Peer, backend: Any, spec: SandboxSpec, call: Call) -> None:
    """Print one line for commands at once that each have a sandbox of their own, as rollouts have."""
    sandboxes = await asyncio.gather(*(backend.create(spec) for _ in range(APART)))
    try:
        following = itertools.cycle(sandboxes)

        async def ours() -> None:
            result = await next(following).exec(["true"])
            if result.exit_code != 0:
                sys.exit(f"the command failed: {result}")

        mine, theirs = [], []
        for _ in range(BATCHES[APART] + 1):
            mine.append(await batch(meter, ours, APART))
            theirs.append(await batch(meter, call, APART))
        name = f"{peer.name:11} {APART} in {APART} sandboxes"
        report(name, medians(mine[1:]), peer.call_name, medians(theirs[1:]))  # the first warms them
    finally:
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))


async def creations(meter: Meter, peer: Peer, backend: Any, spec: SandboxSpec) -> None:
    """Print what it costs to make and to remove sandboxes, one by one and side by side."""

    async def one() -> None:
        sandbox = await backend.create(spec)
        await sandbox.close()

    alone = medians([await batch(meter, one, 1) for _ in range(CREATIONS)])
    many = await batch(meter, one, 16)
    line = f"{peer.name:11} create and remove: {alone.wall:.0f} ms, cpu {alone.cpu:.0f} ms; "
    line += f"16 at once: {many.wall:.0f} ms each, cpu {many.cpu:.0f} ms"
    if peer.create is not None:
        theirs = medians([await batch(meter, peer.create, 1) for _ in range(CREATIONS)])
        line += f" | {peer.create_name}: {theirs.wall:.0f} ms, cpu {theirs.cpu:.0f} ms"
    print(line, flush=True)


async def measure(meter: Meter, peer: Peer) -> None:
    """One backend."""
    backend = create_backend(peer.backend, HermesAgentEnvConfig(**peer.settings), "perf")
    spec = SandboxSpec(network=NetworkPolicy("public" if peer.backend == "ssh" else "none"))
    try:
        await backend.check()
        sandbox = await backend.create(spec)

        async def ours() -> None:
            result = await sandbox.exec(["true"])
            if result.exit_code != 0:
                sys.exit(f"the command failed: {result}")

        async with peer.calls(sandbox, backend) as call:
            await compare(meter, peer.name, ours, peer.call_name, call)
            await apart(meter, peer, backend, spec, call)
        await creations(meter, peer, backend, spec)
    finally:
        await backend.close()


def main() -> None:
    """Measure what is named, else all that is there."""
    meter = Meter()
    try:
        for name in sys.argv[1:] or PEERS:
            if name not in PEERS:
                sys.exit(f"unknown backend {name}; known: {', '.join(PEERS)}")
            with PEERS[name]() as peer:
                if isinstance(peer, str):
                    print(f"{name:11} not measured: {peer}")
                else:
                    asyncio.run(measure(meter, peer))
    finally:
        meter.close()


if __name__ == "__main__":
    main()
