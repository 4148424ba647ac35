"""A listening socket inside the network of another process, held by this one.

A socket belongs to the network namespace that it was made in, whoever holds it. So a short-lived
child joins the namespace, opens the socket and hands it over; nothing of ours stays inside.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from environments.errors import NotSupported

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from inside.listening import main; "
    "main(*map(int, sys.argv[1:]))"
)
_HERE = str(Path(__file__).parents[1] / "local")
_PATIENCE = 30.0


async def listen_in_network_of(process: int, port: int) -> socket.socket:
    """A socket that listens on the loopback interface of ``process``'s network.

    ``NotSupported`` where that network cannot be joined: that takes root, or a process in a user
    namespace of our own.
    """
    return await asyncio.to_thread(_listen, process, port)


def _listen(process: int, port: int) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        arguments = [str(process), str(port), str(theirs.fileno())]
        try:
            joined = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _BOOT, _HERE, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                pass_fds=[theirs.fileno()],
                env={},
                timeout=_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotSupported(f"the sandbox's network cannot be joined: {error}") from error
        if joined.returncode:
            words = joined.stderr.decode("utf-8", "replace").strip().splitlines() or ["it cannot be joined"]
            cure = "" if os.geteuid() == 0 else " (this needs root, or an engine without root)"
            raise NotSupported(f"the sandbox's network cannot be filtered: {words[-1]}{cure}")
        _, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
    return socket.socket(fileno=descriptors[0])
