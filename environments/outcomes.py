"""What an error means: for the attempt that met it, and for all that are still to come."""

from __future__ import annotations

import errno

from environments.errors import HermesError, ModelError, SandboxDiskError, SandboxError, VerifierError
from environments.records import Outcome


def outcome_of(error: BaseException) -> Outcome:
    """What an error that ended a try makes of the attempt."""
    if isinstance(error, ModelError):
        return Outcome.MODEL_ERROR
    if isinstance(error, SandboxError):
        return Outcome.SANDBOX_ERROR
    if isinstance(error, VerifierError):
        return Outcome.VERIFIER_ERROR
    return Outcome.ENVIRONMENT_ERROR


def is_fatal(error: BaseException) -> bool:
    """Whether every further attempt would fail in the same way."""
    if isinstance(error, OSError) and not isinstance(error, SandboxDiskError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    return isinstance(error, HermesError) and error.fatal


def one_line(error: BaseException) -> str:
    """An error's text on one line, or its type where it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
