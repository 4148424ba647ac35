"""A run that is going to be killed: makes sandboxes with busy, detached processes in them, and waits.

Called with the name of a backend, its settings as JSON, the number of sandboxes, how long their processes
sleep, and the run's name.
"""

import asyncio
import json
import sys
from dataclasses import replace

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import NetworkPolicy, SandboxSpec
from environments.sandboxes.registry import create_backend


async def main() -> None:
    name, settings, count, seconds, run_id = sys.argv[1:]
    backend = create_backend(name, HermesAgentEnvConfig(**json.loads(settings)), run_id)
    spec = SandboxSpec()
    if name == "ssh":
        spec = replace(spec, network=NetworkPolicy("public"))
    sleep = f"sleep {seconds}"

    async def one() -> None:
        sandbox = await backend.create(spec)
        await sandbox.exec(f"(setsid env -i {sleep} &) ; {sleep} & mkdir locked; chmod 0 locked")
        await sandbox.spawn(sleep)

    await asyncio.gather(*(one() for _ in range(int(count))))
    print("ready", flush=True)
    await asyncio.sleep(1000)


asyncio.run(main())
