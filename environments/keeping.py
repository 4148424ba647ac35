"""Sandboxes that live on after their rollout, so that somebody can look at what the agent left."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from environments.errors import EvidenceMissing, SandboxError

if TYPE_CHECKING:
    from environments.records import Attempt
    from environments.sandboxes.base import Backend, Sandbox

logger = logging.getLogger(__name__)

CONNECTION_FIELDS = ("ssh_host", "ssh_user", "ssh_port", "ssh_key", "ssh_known_hosts", "ssh_jump_host")
"""Settings that ``hermes-env sandboxes`` needs to find the machine again."""


def is_wanted(mode: str, record: Attempt, error: BaseException | None) -> bool:
    """Whether ``keep_sandboxes`` asks for the sandbox of this attempt, which ended with ``error``."""
    if mode == "all":
        return True
    if mode != "failed" or isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return False
    if error is not None:
        return True
    verdict = record.verdict
    if verdict is None:  # user code went on without a judgement: nothing says that it failed
        return False
    return not (verdict.passed if verdict.passed is not None else (verdict.reward or 0.0) > 0.0)


async def keep(sandbox: Sandbox, config: Any, record: Attempt, tell: Callable[[str], None]) -> bool:
    """Let a sandbox live on and say how to enter it. False where that is impossible: close it then."""
    try:
        until = await sandbox.keep(float(config.kept_sandbox_lifetime))
    except SandboxError as error:
        logger.warning("the sandbox of %s cannot be kept: %s", record.item_id, error)
        return False
    sandbox.info.kept_until = until
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(until))
    tell(
        f"kept until {when}: the sandbox of {record.item_id}, attempt {record.attempt}; "
        f"enter it with: {entry_command(sandbox, config)}"
    )
    return True


async def find_kept(backend: Backend, record: Attempt) -> Sandbox:
    """Join the sandbox that an attempt left. Raises ``EvidenceMissing`` where it is not there any more."""
    info = record.sandbox
    if info is None:
        raise EvidenceMissing("it had no sandbox")
    if info.kept_until is None:
        raise EvidenceMissing("its sandbox ended with it; --env.keep_sandboxes all keeps them")
    if info.backend != backend.name:
        raise EvidenceMissing(f"its sandbox is one of {info.backend}, not of {backend.name}")
    if info.kept_until < time.time():
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.kept_until))
        raise EvidenceMissing(f"its sandbox was kept until {when}")
    entry = next((entry for entry in await backend.survey() if entry.id == info.id), None)
    if entry is None:
        raise EvidenceMissing(f"its sandbox {info.id} was removed")
    return await backend.attach(entry)


def entry_command(sandbox: Sandbox, config: Any) -> str:
    """The command line that opens a shell in a kept sandbox."""
    words = ["hermes-env", "sandboxes", "shell", sandbox.id, "--backend", config.terminal_backend]
    if sandbox.info.backend == "ssh":
        for name in CONNECTION_FIELDS:
            if (value := getattr(config, name)) is not None:
                words += [f"--env.{name}", str(value)]
    return shlex.join(words)
