"""What a sandbox's answers mean. It is not trusted to give any."""

from __future__ import annotations

from typing import Any, TypeVar

from environments.errors import SandboxBroken
from environments.sandboxes.base import ExecResult, FileInfo
from environments.sandboxes.local.inside import wire

T = TypeVar("T")

KILLED = 137
"""Exit code of what was killed."""


def result(message: wire.Message | None, duration: float, timed_out: bool) -> ExecResult:
    """What a supervisor said about its command; one that was killed said nothing."""
    if message is None:
        return ExecResult(
            124 if timed_out else KILLED, b"", b"", duration, timed_out, None if timed_out else 9
        )
    wire.close_all(message.descriptors)
    header, body = message.header, message.body
    if "errno" in header:
        text = f"cannot start a process: {header.get('text')}\n".encode()
        return ExecResult(126, b"", text, duration, timed_out, None, 0, len(text))
    try:
        status, split = int(header["exit"]), int(header["split"])
        totals = int(header["stdout"]), int(header["stderr"])
    except (KeyError, TypeError, ValueError) as error:
        raise SandboxBroken(f"the sandbox answered nonsense: {error}") from error
    return ExecResult(
        exit_code=124 if timed_out else status if status >= 0 else 128 - status,
        stdout=body[:split],
        stderr=body[split:],
        duration=duration,
        timed_out=timed_out,
        killed_by=-status if status < 0 and not timed_out else None,
        stdout_bytes=totals[0],
        stderr_bytes=totals[1],
    )


def file_info(values: dict[str, Any]) -> FileInfo:
    try:
        return FileInfo(**{name: values[name] for name in ("path", "kind", "size", "mode", "modified_at")})
    except (KeyError, TypeError) as error:
        raise SandboxBroken(f"the sandbox answered nonsense: {error}") from error


def told(message: wire.Message, name: str, kind: type[T]) -> T:
    """A value of an answer. ``SandboxBroken`` where it is missing."""
    value = message.header.get(name)
    if not isinstance(value, kind):
        raise SandboxBroken(f"the sandbox answered without {name}")
    return value
