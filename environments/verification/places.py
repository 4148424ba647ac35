"""Fresh directories for the tests and for what they write."""

from __future__ import annotations

from environments.errors import SandboxError, VerifierError
from environments.sandboxes.base import Sandbox
from environments.verification.reward import LOGS

TESTS = "/tests"

_FRESH = """
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
umask 022
if [ -L /logs ] || [ ! -d /logs ]; then rm -rf /logs; fi
for d in /tests /logs/verifier; do
  rm -rf "$d" && mkdir -p "$d" || exit 1
  if [ "$1" ]; then chown "$1" "$d" || exit 1; fi
done
"""
"""``rm -rf`` removes a link itself and nothing behind it. Argument: the owner, or nothing."""


async def make_fresh(sandbox: Sandbox, owner: str | None = None) -> None:
    """Empty ``/tests`` and ``/logs/verifier`` that are real directories, of the user who runs the tests.

    Raises ``VerifierError`` where the agent has seen to it that this cannot be done.
    """
    made = await sandbox.exec(["/bin/sh", "-c", _FRESH, "sh", owner or ""], cwd="/", timeout=120)
    if made.exit_code != 0 and sandbox.info.backend == "docker":
        if owner is None:
            found = (await sandbox.exec(["/bin/sh", "-c", "id -u"], cwd="/", timeout=60)).text.strip()
            owner = found if found.isdigit() else ""
        made = await sandbox.exec(["/bin/sh", "-c", _FRESH, "sh", owner], cwd="/", timeout=120, user="0")
    if made.exit_code != 0:
        reason = made.stderr.decode("utf-8", "replace").strip().splitlines()
        raise VerifierError(f"{TESTS} and {LOGS} cannot be made fresh: {reason[-1] if reason else 'no word'}")
    for path in ("/logs", LOGS, TESTS):
        try:
            kind = (await sandbox.stat(path)).kind
        except OSError as error:
            raise VerifierError(f"{path} cannot be made fresh: {error}") from error
        if kind != "directory":
            raise VerifierError(f"{path} cannot be made fresh: it is a {kind}")


async def clear(sandbox: Sandbox) -> None:
    """Remove the tests and their results, so that the agent of a next step does not see them."""
    script = "PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH; rm -rf /tests /logs/verifier"
    user = "0" if sandbox.info.backend == "docker" else None
    removed = await sandbox.exec(["/bin/sh", "-c", script], cwd="/", timeout=120, user=user)
    if removed.exit_code != 0:
        raise SandboxError("the tests of a step cannot be removed from the sandbox")
