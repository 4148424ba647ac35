"""A run that is going to be killed: makes sandboxes with busy, detached processes in them, and waits.

Called with the name of a backend, its settings as JSON, and the number of sandboxes.
"""

import asyncio
import json
import sys
from dataclasses import replace

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.base import NetworkPolicy, SandboxSpec
from environments.sandboxes.registry import create_backend


async def main() -> None:
    name, settings, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    backend = create_backend(name, HermesAgentEnvConfig(**settings), "dead")
    spec = SandboxSpec()
    if name == "ssh":
        spec = replace(spec, network=NetworkPolicy("public"))

    async def one() -> None:
        sandbox = await backend.create(spec)
        await sandbox.exec("(setsid env -i sleep 34977 &) ; sleep 34977 & mkdir locked; chmod 0 locked")
        await sandbox.spawn("sleep 34977")

    await asyncio.gather(*(one() for _ in range(count)))
    print("ready", flush=True)
    await asyncio.sleep(1000)


asyncio.run(main())
