"""Whether a sandbox can still be judged after its agent, and whose doing it is where it cannot."""

from __future__ import annotations

from environments.errors import SandboxBroken
from environments.sandboxes.base import Sandbox

_PATIENCE = 30.0


async def ensure_answer(sandbox: Sandbox) -> None:
    """Return once ``sandbox`` runs commands.

    What the agent left running may keep every command from starting, as a fork bomb does. That is no
    failure of the engine, and no reason for a new draw: it is ended, and where still nothing runs although
    the engine has the sandbox, the agent has broken it. Raises ``SandboxBroken`` then, and ``SandboxError``
    for a sandbox that is lost.
    """
    if await sandbox.alive():
        return
    await sandbox.kill_all()
    if await sandbox.alive():
        return
    result = await sandbox.exec(["/bin/sh", "-c", ":"], cwd="/", timeout=_PATIENCE)
    if result.exit_code or result.timed_out:
        words = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
        said = words[-200:] or f"exit code {result.exit_code}"
        raise SandboxBroken(f"no command can be run in it any more: {said}")
