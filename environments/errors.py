"""Every error of the framework, in one tree.

::

    HermesError
    ├── ConfigError              what the user typed or wrote is wrong (also a ValueError)
    │   └── UnknownName          a name that does not exist; lists the near ones
    ├── MissingExtra             an optional part is not installed; names the extra that brings it
    ├── ModelError               the model's server failed us        -> outcome model_error
    │   ├── BadRequest           the server refuses this request (4xx); never sent again
    │   │   └── ContextOverflow  the conversation no longer fits the model
    │   ├── AccessDenied         bad key, no such model: would meet every attempt (fatal)
    │   └── ServerUnavailable    connection, time-out, 429, 5xx after all retries
    ├── SandboxError             the sandbox or its engine failed us -> outcome sandbox_error
    │   ├── SandboxReleased      used after its rollout had ended: a bug of the caller
    │   ├── SandboxBroken        the agent broke it (killed init, filled its disk): scored 0, not retried
    │   ├── NotSupported         the backend cannot do what the task needs (fatal)
    │   │   └── ImageUnusable    a task's image cannot be had or used; concerns tasks with it alone
    │   │       └── ImageBuildFailed  its Dockerfile cannot be built
    │   ├── MachineShortage      this machine lacks something now that it may have at another time
    │   │   └── ProcessShortage  it allows no other process
    │   └── EngineUnusable       the engine can serve no attempt, such as on a full disk (fatal)
    ├── EvidenceMissing          what an attempt left behind is gone: it cannot be judged again
    ├── VerifierError            grading failed; the verifier runs again -> outcome verifier_error
    ├── UserCodeError            the environment's own code broke a rule -> outcome environment_error
    ├── StoreError               results cannot be written or read (fatal)
    │   ├── ResumeMismatch       the file on disk belongs to another configuration
    │   └── ResultsUnreadable    what should be read holds no results
    └── RunAborted               the run ends now; carries the reason

File operations in a sandbox raise ``OSError`` as local ones do, ``SandboxDiskError`` among them.

An error with ``fatal`` set would meet every attempt, so it ends the run at once with one line. One with
``refused`` set came before anything was done, and its exit code is 2.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any


class HermesError(Exception):
    """Base of all errors raised on purpose by this package."""

    fatal: bool = False
    """Whether every further attempt would fail the same way."""

    lasting: bool = False
    """Whether another try at the same attempt would fail the same way."""

    refused: bool = False
    """Whether nothing was done before it came up: what was asked for has to be changed first."""


class ConfigError(HermesError, ValueError):
    """Something the user configured is wrong. The text says what, where, and what to do."""

    fatal = True
    refused = True


class UnknownName(ConfigError):
    """A name that does not exist: an option, a toolset, a backend, an environment."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str = "") -> None:
        self.kind, self.name = kind, name
        super().__init__(f"unknown {kind} {name!r}{f' in {where}' if where else ''}{suggestion(name, known)}")


class MissingExtra(HermesError):
    """An optional dependency is not installed."""

    fatal = True
    refused = True

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(f"{what} needs the extra '{extra}': pip install 'hermes-environments[{extra}]'")


class ModelError(HermesError):
    """The model's server failed. ``status`` is the HTTP status, ``body`` what the server said."""

    def __init__(self, message: str, *, status: int | None = None, body: str = "") -> None:
        self.status, self.body = status, body
        super().__init__(message)


class BadRequest(ModelError):
    """The server refused the request itself; sending it again cannot help."""


class ContextOverflow(BadRequest):
    """The conversation does not fit the model's context."""


class AccessDenied(ModelError):
    """The key is wrong or the model does not exist."""

    fatal = True


class ServerUnavailable(ModelError):
    """No answer after all retries. ``retry_after`` is the server's own wish, in seconds."""

    def __init__(
        self, message: str, *, status: int | None = None, body: str = "", retry_after: float | None = None
    ) -> None:
        self.retry_after = retry_after
        super().__init__(message, status=status, body=body)


class SandboxError(HermesError):
    """The sandbox or its engine failed, through no doing of the agent."""


class SandboxReleased(SandboxError):
    """A sandbox was used after its rollout had released it."""


class SandboxBroken(SandboxError):
    """The agent destroyed its own sandbox."""


class NotSupported(SandboxError):
    """The backend lacks what the task needs."""

    fatal = True


class ImageUnusable(NotSupported):
    """The image that a task names cannot be had, built or used. Other tasks may have other images."""

    fatal = False
    lasting = True


class ImageBuildFailed(ImageUnusable):
    """The Dockerfile of a task cannot be built."""


class MachineShortage(SandboxError):
    """This machine lacks something now that it may have at another time."""


class ProcessShortage(MachineShortage):
    """This machine allows no other process now."""

    def __init__(self) -> None:
        super().__init__(
            "this machine allows no more processes; see `ulimit -u` and pids.max of its control group"
        )


class EngineUnusable(SandboxError):
    """What makes the sandboxes cannot serve any attempt."""

    fatal = True


class SandboxDiskError(OSError):
    """A sandbox's disk is full or read-only. No other sandbox is concerned, nor the disk we write to."""


class EvidenceMissing(HermesError):
    """What an attempt left behind is not there any more, so that it cannot be judged again."""


class VerifierError(HermesError):
    """The verifier could not reach a verdict. ``evidence`` is a verdict without a reward, or None."""

    def __init__(self, message: str, *, evidence: Any = None) -> None:
        self.evidence = evidence
        super().__init__(message)


class UserCodeError(HermesError):
    """Code of the environment returned something that it must not."""


class StoreError(HermesError):
    """Results cannot be written or read."""

    fatal = True


class ResumeMismatch(StoreError):
    """The results on disk were made with another configuration."""

    refused = True


class ResultsUnreadable(StoreError):
    """A path that should hold results does not, or they are of no known form."""

    refused = True


class RunAborted(HermesError):
    """The run ends before its time; the message is the one line the user sees."""

    fatal = True


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """What fails inside was refused before the work began. An exception of the user's own code stays what
    it is: a fault while his program ran."""
    try:
        yield
    except HermesError as error:
        error.refused = error.refused or not isinstance(error, UserCodeError)
        raise


def suggestion(name: str, known: Iterable[str]) -> str:
    """``"; did you mean a, b?"`` for near names, else the list of all of them, or the first of many.

    A name may be a glob, which names with the same words are near to.

    >>> suggestion("termnal", ["terminal", "file"])
    '; did you mean terminal?'
    """
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6) or _with_words_of(name, names)
    if near:
        return f"; did you mean {', '.join(near)}?"
    if len(names) > _MOST_NAMES:
        return f"; there are {len(names)}: {', '.join(names[:_MOST_NAMES])}, …"
    return f"; known: {', '.join(names)}" if names else ""


_MOST_NAMES = 12


def _with_words_of(name: str, names: list[str]) -> list[str]:
    words = sorted(re.findall(r"\w{3,}", name.lower()), key=len, reverse=True)
    for word in words:
        if found := [known for known in names if word in known.lower()]:
            return found[:3]
    return []
