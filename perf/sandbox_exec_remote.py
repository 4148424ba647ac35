"""Latency and CPU of one command on the ssh and singularity backends, beside the bare engine.

    HERMES_TEST_SSH='user@host:port?key=FILE&known_hosts=FILE' \\
    HERMES_TEST_SINGULARITY_IMAGE=IMAGE python perf/sandbox_exec_remote.py

Each command is ``true``. Peers: the ``ssh`` program with a control master, and ``apptainer exec`` into
one instance. For 1, 16 and 64 commands at once it prints the median of a batch, divided by its size,
and the CPU of this process and its children per command. What the server itself uses is not counted.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import NetworkPolicy, SandboxSpec
from environments.sandboxes.registry import create_backend
from environments.sandboxes.singularity.engine import Engine
from environments.sandboxes.ssh.options import parse_address

AT_ONCE = (1, 16, 64)
BATCHES = {1: 30, 16: 6, 64: 3}

Call = Callable[[], Awaitable[Any]]


def cpu() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


async def measure(call: Call, at_once: int) -> tuple[float, float]:
    """Median seconds of one command, and its CPU seconds."""
    await call()
    times = []
    started = cpu()
    for _ in range(BATCHES[at_once]):
        begun = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(at_once)))
        times.append(time.perf_counter() - begun)
    return statistics.median(times) / at_once, (cpu() - started) / at_once / BATCHES[at_once]


async def run_program(*arguments: str) -> None:
    """Run a program, which must succeed."""
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, message = await process.communicate()
    if process.returncode:
        sys.exit(f"{arguments[0]} failed: {message.decode()}")


async def compare(name: str, ours: Call, peer_name: str, peer: Call) -> None:
    """Print one line for every number of commands at once."""
    for at_once in AT_ONCE:
        mine, mine_cpu = await measure(ours, at_once)
        theirs, theirs_cpu = await measure(peer, at_once)
        print(
            f"{name:12} {at_once:3} at once: {mine * 1000:7.1f} ms, cpu {mine_cpu * 1000:6.1f} ms | "
            f"{peer_name}: {theirs * 1000:7.1f} ms, cpu {theirs_cpu * 1000:6.1f} ms | "
            f"ratio {mine / theirs:.2f}, cpu {mine_cpu / theirs_cpu:.2f}",
            flush=True,
        )


async def ssh(text: str) -> None:
    """The ssh backend beside the program ssh."""
    name, _, query = text.partition("?")
    options = {key: values[-1] for key, values in parse_qs(query).items()}
    settings = {f"ssh_{key}": value for key, value in options.items()}
    address = parse_address(name, "ssh_host")
    config = HermesAgentEnvConfig(ssh_host=name, sandbox_network="public", **settings)
    backend = create_backend("ssh", config, "perf")
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["-o", f"ControlPath={directory}/master", "-p", str(address.port or 22)]
        if "key" in options:
            arguments += ["-i", options["key"]]
        if "known_hosts" in options:
            arguments += ["-o", f"UserKnownHostsFile={options['known_hosts']}"]
        target = f"{address.user}@{address.host}" if address.user else address.host
        master = await asyncio.create_subprocess_exec("ssh", "-MN", *arguments, target)
        try:
            while not await asyncio.to_thread(Path(directory, "master").exists):
                await asyncio.sleep(0.05)
            sandbox = await backend.create(SandboxSpec(network=NetworkPolicy("public")))
            await compare(
                "ssh",
                lambda: sandbox.exec(["true"]),
                "ssh, control master",
                lambda: run_program("ssh", *arguments, target, "true"),
            )
        finally:
            await backend.close()
            master.terminate()
            await master.wait()


async def singularity(image: str) -> None:
    """The singularity backend beside ``apptainer exec``."""
    backend = create_backend("singularity", HermesAgentEnvConfig(singularity_image=image), "perf")
    engine = Engine.find().path
    try:
        sandbox = await backend.create(SandboxSpec())
        instance = f"instance://{sandbox.id}"
        rights = ["--no-privs"] if os.geteuid() == 0 else []
        await compare(
            "singularity",
            lambda: sandbox.exec(["true"]),
            "apptainer exec",
            lambda: run_program(engine, "--silent", "exec", *rights, "--pwd", "/", instance, "true"),
        )
        waits = []
        for _ in range(10):  # as an agent does, whose model thinks between two commands
            await asyncio.sleep(0.5)
            begun = time.perf_counter()
            await sandbox.exec(["true"])
            waits.append(time.perf_counter() - begun)
        print(f"singularity after a pause: {statistics.median(waits) * 1000:.1f} ms")
    finally:
        await backend.close()


async def main() -> None:
    """Measure what the environment names."""
    if text := os.environ.get("HERMES_TEST_SSH"):
        await ssh(text)
    if image := os.environ.get("HERMES_TEST_SINGULARITY_IMAGE"):
        await singularity(image)


if __name__ == "__main__":
    asyncio.run(main())
