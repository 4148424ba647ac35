"""The attempt record: what one try at rolling out one item was, and what it is worth.

Everything else reads or writes these values: result files, resume, statistics, the viewer, groups
for the trainer, rescoring. They are plain data; ``to_json`` and ``attempt_from_json`` are the only
behaviour. Times are seconds since the epoch where the name says ``_at``, else durations in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any, TypedDict

import orjson

SCHEMA_VERSION = 1

Message = dict[str, Any]
"""One chat message in OpenAI's form."""

Item = Any
"""One entry of a dataset, whatever the environment makes of it."""

MASKED = -100
"""Mask value of a token that is not trained (the label convention of cross-entropy losses)."""

MASKED_LOGPROB = 1.0
"""Log-probability written at masked positions: impossible, so it is never mistaken for a real one."""


class Ending(StrEnum):
    """How a rollout ended."""

    STOPPED = "stopped"
    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"
    COST_BUDGET = "cost_budget"
    CONTEXT_LENGTH = "context_length"
    TIME_LIMIT = "time_limit"
    REFUSED = "refused"
    OUTPUT_LIMIT = "output_limit"
    EMPTY_REPLY = "empty_reply"
    REPEATED_CALLS = "repeated_calls"
    SANDBOX_BROKEN = "sandbox_broken"
    ERROR = "error"
    CANCELLED = "cancelled"

    @property
    def graded(self) -> bool:
        """Whether what is left in the sandbox is judged: all but our own failures."""
        return self not in (Ending.ERROR, Ending.CANCELLED)


class Outcome(StrEnum):
    """What an attempt is worth."""

    SCORED = "scored"
    MODEL_ERROR = "model_error"
    SANDBOX_ERROR = "sandbox_error"
    VERIFIER_ERROR = "verifier_error"
    ENVIRONMENT_ERROR = "environment_error"
    CANCELLED = "cancelled"


class TrainingUse(StrEnum):
    """What an attempt does in its group."""

    TRAIN = "train"
    BASELINE = "baseline"
    EXCLUDE = "exclude"


class Trust(StrEnum):
    """Where the verifier ran, from the strongest to the weakest."""

    SEPARATE = "separate"
    ROOM = "room"
    WEAK = "weak"
    NONE = "none"


@dataclass(slots=True)
class Reward:
    """What ``compute_reward`` may return instead of a number."""

    value: float
    metrics: dict[str, float] = field(default_factory=dict)
    explanation: str = ""


@dataclass(slots=True)
class Usage:
    """Tokens and money. ``cost`` is in US dollars, None where neither configuration nor server says."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None

    def add(self, other: Usage) -> None:
        """Add another call's usage to this one."""
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.completion_tokens += other.completion_tokens
        self.reasoning_tokens += other.reasoning_tokens
        self.add_cost(other.cost)

    def add_cost(self, cost: float | None) -> None:
        """Add another call's cost alone, where it is known."""
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost


@dataclass(slots=True)
class ToolCallRecord:
    """One tool call of a turn. ``error`` is the kind of failure, None where it worked."""

    id: str
    name: str
    started_at: float
    ended_at: float
    error: str | None = None


@dataclass(slots=True)
class Turn:
    """One call of the model and the tools it asked for."""

    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    started_at: float = 0.0
    first_token_at: float | None = None
    ended_at: float = 0.0
    retries: int = 0
    waiting: float = 0.0
    tool_calls: list[ToolCallRecord] = field(default_factory=list)
    calls_parsed_from_text: str | None = None
    """Name of the parser, where the server sent the calls as text."""
    policy_version: str | None = None
    server: str | None = None


@dataclass(slots=True)
class PolicySpan:
    """Tokens ``[start, end)`` were sampled by this version of the policy."""

    start: int
    end: int
    version: str


@dataclass(slots=True)
class Sequence:
    """Token ids of one branch. ``mask`` holds the id where trained and -100 where not."""

    tokens: list[int]
    mask: list[int]
    logprobs: list[float]
    policy_versions: list[PolicySpan] = field(default_factory=list)
    fork_reason: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class SandboxInfo:
    """The sandbox as it really was, not as it was asked for."""

    backend: str
    isolation: str
    network: str
    id: str
    resources: dict[str, float] = field(default_factory=dict)
    image: str | None = None
    image_digest: str | None = None
    limitations: list[str] = field(default_factory=list)
    kept_until: float | None = None
    """Unix time until which it lives on after its rollout; None where it was destroyed with it."""


@dataclass(slots=True)
class Clock:
    """Where the time went, in seconds. ``waiting`` is rate limits, back-off and our own limits."""

    queue: float = 0.0
    sandbox_start: float = 0.0
    model: float = 0.0
    tools: float = 0.0
    waiting: float = 0.0
    verification: float = 0.0
    wall: float = 0.0

    @property
    def working(self) -> float:
        """Time that counts against a deadline: wall minus waiting."""
        return max(0.0, self.wall - self.waiting)


@dataclass(slots=True)
class Verdict:
    """One judgement of an attempt. Rescoring appends another; the last one counts."""

    reward: float | None
    metrics: dict[str, float] = field(default_factory=dict)
    explanation: str = ""
    passed: bool | None = None
    verifier: str = ""
    verifier_version: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    trust: Trust = Trust.NONE
    tampered: bool = False
    contested: bool = False
    killed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    overridden: list[str] = field(default_factory=list)
    bundle_version: str | None = None
    error: str | None = None
    started_at: float = 0.0
    duration: float = 0.0


@dataclass(slots=True)
class Failure:
    """Evidence of an error: the try it met, its kind, text and traceback."""

    try_number: int
    outcome: Outcome
    type: str
    message: str
    traceback: str = ""
    at: float = 0.0


@dataclass(slots=True)
class Provenance:
    """What made this attempt. Hashes are hex SHA-256, shortened to 16 characters."""

    framework_version: str = ""
    environment_version: str = ""
    dataset: str | None = None
    dataset_revision: str | None = None
    git_commit: str | None = None
    item_hash: str = ""
    view_hash: str = ""
    """What the item put before the agent beside its prompt: machine, limits, tools; not what judges."""
    config_hash: str = ""
    tools_hash: str = ""


@dataclass(slots=True)
class AgentInfo:
    """Who acted. ``wire`` is the protocol spoken to the model, ``phase`` 1 (messages) or 2 (tokens)."""

    name: str = "hermes"
    version: str = ""
    model: str = ""
    model_served: str | None = None
    wire: str = ""
    phase: int = 1


@dataclass(slots=True)
class Attempt:
    """One try at rolling out one item."""

    run_id: str
    environment: str
    item_id: str
    group_id: str
    attempt: int
    try_number: int = 0
    seed: int | None = None
    schema_version: int = SCHEMA_VERSION
    provenance: Provenance = field(default_factory=Provenance)
    agent: AgentInfo = field(default_factory=AgentInfo)
    messages: list[Message] = field(default_factory=list)
    native_items: list[Any] = field(default_factory=list)
    """Provider-native items that must go back verbatim, such as signed reasoning."""
    tool_names: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    tool_errors: list[dict[str, Any]] = field(default_factory=list)
    context_changes: list[dict[str, Any]] = field(default_factory=list)
    """What the context policy changed in ``messages``: turn, policy, messages, tokens before and after."""
    usage: Usage = field(default_factory=Usage)
    sequences: list[Sequence] = field(default_factory=list)
    sandbox: SandboxInfo | None = None
    clock: Clock = field(default_factory=Clock)
    ending: Ending | None = None
    outcome: Outcome | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    """Evidence of every try that failed, the last included."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the environment adds to its statistics; travels from workers to the driver."""
    item: dict[str, Any] | None = None
    """Display data of the item: what the environment's ``item_info`` returns."""
    row: dict[str, Any] = field(default_factory=dict)
    """Further columns of the training row, where ``collect_trajectory`` made it: advantages, images."""
    started_at: float = 0.0
    ended_at: float = 0.0

    @property
    def verdict(self) -> Verdict | None:
        """The judgement that counts."""
        return self.verdicts[-1] if self.verdicts else None

    @property
    def reward(self) -> float | None:
        """The reward that counts, None where there is none."""
        return self.verdict.reward if self.verdict is not None else None

    @property
    def valid(self) -> bool:
        """Whether this attempt may be counted in a score."""
        return self.outcome is Outcome.SCORED

    @property
    def key(self) -> tuple[str, str, int]:
        """What resume goes by, together with the environment: group, item, attempt."""
        return (self.group_id, self.item_id, self.attempt)


class ScoredDataItem(TypedDict, total=False):
    """One row of a group as the trajectory API knows it."""

    tokens: list[int]
    masks: list[int]
    scores: float
    advantages: list[float] | None
    ref_logprobs: list[float] | None
    messages: list[Message] | None
    inference_logprobs: list[float] | None
    group_overrides: dict[str, Any] | None
    overrides: dict[str, Any] | None
    images: Any
    distill_token_ids: list[list[int]] | None
    distill_logprobs: list[list[float]] | None
    metadata: dict[str, Any]


class ScoredDataGroup(TypedDict, total=False):
    """One group as the trajectory API knows it; every list has one entry per row."""

    tokens: list[list[int]]
    masks: list[list[int]]
    scores: list[float]
    advantages: list[list[float]] | None
    ref_logprobs: list[list[float]] | None
    messages: list[list[Message]] | None
    generation_params: dict[str, Any] | None
    inference_logprobs: list[list[float]] | None
    group_overrides: dict[str, Any] | None
    overrides: list[dict[str, Any]] | None
    images: Any
    distill_token_ids: list[list[list[int]]] | None
    distill_logprobs: list[list[list[float]]] | None
    metadata: list[dict[str, Any]]
    failed: list[dict[str, Any]]


def to_json(record: Any) -> bytes:
    """One line of JSON for a record. NaN and infinity become null, as JSON has neither."""
    return orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY, default=_encode)


def _encode(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def attempt_from_json(line: bytes | str) -> Attempt:
    """Read an attempt back; fields that this version does not know are passed over."""
    attempt: Attempt = _adapter().validate_json(line)
    return attempt


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Attempt)
