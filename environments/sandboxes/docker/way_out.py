"""The only way out of a container with the network policy ``allow-list``.

Such a container has the engine's network ``none``. A socket made inside its network namespace is served
by a proxy of ours, so there is no network per sandbox and no process of ours in it. That takes an engine
on this machine, and the right to join the container's namespaces.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from environments.errors import NotSupported
from environments.sandboxes.base import NetworkPolicy
from environments.sandboxes.docker.containers import Container
from environments.sandboxes.egress import egress
from environments.sandboxes.egress.joining import listen_in_network_of
from environments.sandboxes.egress.proxy import FilteringProxy


async def open_way_out(container: Container, policy: NetworkPolicy) -> FilteringProxy | None:
    """The proxy of a container; None where its policy needs none. ``NotSupported`` where it cannot be."""
    if policy.mode != "allow-list":
        return None
    process = int((await container.inspect())["State"].get("Pid") or 0)
    if not await asyncio.to_thread(_is_process_of, process, container.id):
        raise NotSupported(
            "an allow-list needs the container engine on this machine and in our process namespace: "
            f"process {process} is not that of the container"
        )
    return egress.start(policy, await listen_in_network_of(process, egress.PORT))


def _is_process_of(process: int, container: str) -> bool:
    """Whether a process of this machine belongs to the container: an engine elsewhere counts its own."""
    for name in ("cgroup", "mountinfo"):
        try:
            if process and container in Path(f"/proc/{process}/{name}").read_text():
                return True
        except OSError:  # there is none, or it is not ours to look at
            continue
    return False
