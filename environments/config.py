"""Configuration: plain pydantic models, one per section of the command line and of YAML.

``env:`` is a ``BaseEnvConfig`` (or the environment's own subclass), ``openai:`` one or several
``APIServerConfig``. Names and defaults of Atropos and of Hermes Agent are kept; what is new stands
after them. ``cli.py`` turns the fields into flags; this module knows nothing of the command line.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ServerType = Literal["openai", "vllm", "sglang", "trl", "llamacpp", "oracle", "nop"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class EvalHandlingEnum(Enum):
    """What training does while a periodic evaluation runs."""

    STOP_TRAIN = "STOP_TRAIN"
    LIMIT_TRAIN = "LIMIT_TRAIN"
    NONE = "NONE"


class ServerBaseline(BaseModel):
    """What every model server has, whatever it speaks."""

    model_config = ConfigDict(extra="forbid", defer_build=True, protected_namespaces=())

    timeout: int = Field(1200, description="Total deadline of one model call with its retries, seconds.")
    num_max_requests_at_once: int = Field(512, description="Training calls this server takes at once.")
    num_requests_for_eval: int = Field(64, description="Evaluation calls this server takes at once.")
    model_name: str = Field(
        "default", description="Model to ask for; for llamacpp the path of a GGUF file."
    )
    rolling_buffer_length: int = Field(1000, description="Calls that timing statistics look back on.")
    server_type: ServerType = Field(
        "openai",
        description="openai: any OpenAI-compatible chat API; vllm, sglang: exact tokens for training; "
        "llamacpp: a local GGUF model started for you; oracle, nop: built-in policies without a model.",
    )
    tokenizer_name: str = Field("none", description="Tokenizer, where it is not the model's own.")


class APIServerConfig(ServerBaseline):
    """One model server."""

    base_url: str | None = Field("", description="API root, for instance http://localhost:8000/v1.")
    api_key: str | None = Field(
        "", description="Key. Empty: taken from the provider's variable (OPENAI_API_KEY, ...).", repr=False
    )
    n_kwarg_is_ignored: bool = Field(False, description="The server ignores n; ask n times instead.")
    health_check: bool = Field(True, description="Kept for old configs; health is learnt from real calls.")
    stream: bool | None = Field(
        None, description="Stream replies underneath. Unset: for servers that are not on this machine."
    )
    max_retries: int = Field(5, ge=0, description="New tries of a call after 408, 409, 429, 5xx or no answer.")
    reasoning_echo: bool | None = Field(
        None, description="Send reasoning back with the history. Unset: as the provider wants it."
    )
    parse_text_calls: bool | None = Field(
        None,
        description="Read tool calls from the text of a reply that has none. Unset: for servers on this "
        "machine and private networks.",
    )
    context_length: int | None = Field(None, description="The model's context, where the server hides it.")


class BaseEnvConfig(BaseModel):
    """Settings of every environment (the fields of Atropos, then ours)."""

    model_config = ConfigDict(extra="forbid", defer_build=True, protected_namespaces=())

    group_size: int = Field(4, ge=1, description="Rollouts of one item that form a group.")
    max_num_workers: int = Field(-1, description="Groups in flight; -1: max_num_workers_per_node x servers.")
    max_eval_workers: int = Field(16, ge=1, description="Rollouts in flight during evaluate.")
    max_num_workers_per_node: int = Field(8, description="Groups in flight per model server.")
    steps_per_eval: int = Field(100, description="Training steps between two evaluations.")
    max_token_length: int = Field(
        2048, description="Longest reply in tokens, and longest sequence sent to the trainer."
    )
    eval_handling: EvalHandlingEnum = Field(
        EvalHandlingEnum.STOP_TRAIN, description="What training does while an evaluation runs."
    )
    eval_limit_ratio: float = Field(0.5, description="Share of workers left to training with LIMIT_TRAIN.")
    inference_weight: float = Field(1.0, description="Weight of this environment beside others.")
    batch_size: int = Field(-1, description="Sequences in a training batch; -1: as the trainer says.")
    max_batches_offpolicy: int = Field(3, description="Batches that may wait for the trainer.")
    tokenizer_name: str = Field(
        "NousResearch/DeepHermes-3-Llama-3-3B-Preview", description="Tokenizer of the trained model."
    )
    use_wandb: bool = Field(True, description="Log to Weights & Biases where it is installed and has a key.")
    rollout_server_url: str = Field("http://localhost:8000", description="Trajectory API for serve.")
    total_steps: int = Field(1000, description="process: groups to make. serve: training steps.")
    wandb_name: str | None = Field(None, description="Name of the run; default: the environment's name.")
    num_rollouts_to_keep: int = Field(32, description="Example rollouts kept for W&B.")
    num_rollouts_per_group_for_logging: int = Field(1, description="Example rollouts per group; -1: all.")
    ensure_scores_are_not_same: bool = Field(True, description="Leave out groups whose scores are all equal.")
    data_path_to_save_groups: str | None = Field(None, description="process: JSONL file for the groups.")
    data_dir_to_save_evals: str | None = Field(None, description="evaluate: directory for the results.")
    min_items_sent_before_logging: int = Field(2, description="Groups sent between two logs.")
    include_messages: bool = Field(False, description="Keep the conversation in each group.")
    min_batch_allocation: float | None = Field(None, description="Smallest share of a batch, 0 to 1.")
    worker_timeout: float = Field(600, description="serve: seconds until a group counts as stuck.")
    thinking_mode: bool = Field(False, description="Ask the model to think before it answers.")
    reasoning_effort: ReasoningEffort | None = Field(None, description="How much the model reasons.")
    max_reasoning_tokens: int | None = Field(
        None, ge=1024, le=32000, description="Upper limit of reasoning tokens, 1024 to 32000."
    )
    custom_thinking_prompt: str | None = Field(None, description="Text that asks for thinking.")

    seed: int = Field(0, description="Seed of the run; groups and attempts derive theirs from it.")
    limit: int | None = Field(None, ge=0, description="Use at most this many different items.")
    item_ids: list[str] | None = Field(None, description="Use only items whose id matches one of these globs.")
    attempts: int = Field(1, ge=1, description="evaluate: attempts per item.")
    resume: bool = Field(True, description="Go on from the output file; false keeps the old file aside.")
    model_error_retries: int = Field(3, ge=0, description="New rollouts after a failure of the model server.")
    sandbox_error_retries: int = Field(3, ge=0, description="New rollouts after a failure of the sandbox.")
    verifier_error_retries: int = Field(2, ge=0, description="New gradings after a failure of the verifier.")
    retry_backoff: float = Field(1.0, ge=0, description="Seconds before the first new rollout; doubles.")
    failed_attempts: Literal["refill", "smaller"] = Field(
        "smaller", description="A group with a failed attempt is sent smaller, or the attempt is refilled."
    )
    rollout_timeout: float | None = Field(
        None, gt=0, description="Seconds the agent may work on one item; then it is graded as it stands."
    )
    rollout_timeout_clock: Literal["working", "wall"] = Field(
        "working", description="Whether waiting for rate limits and queues counts against rollout_timeout."
    )
    reward_timeout: float | None = Field(600, gt=0, description="Seconds compute_reward may take.")
    top_p: float | None = Field(None, description="Nucleus sampling.")
    token_budget: int | None = Field(None, ge=1, description="Completion tokens one rollout may use.")
    progress: Literal["auto", "live", "plain", "none"] = Field(
        "auto", description="Progress display; auto: live on a terminal, plain lines elsewhere."
    )


class HermesAgentEnvConfig(BaseEnvConfig):
    """Settings of environments whose agent uses tools in a sandbox."""

    enabled_toolsets: list[str] | None = Field(None, description="Toolsets to enable; unset: all.")
    disabled_toolsets: list[str] | None = Field(
        None, description="Toolsets to leave out, on top of whatever was chosen."
    )
    distribution: str | None = Field(
        None, description="Named probability distribution that toolsets are drawn from, per group."
    )
    max_agent_turns: int = Field(30, ge=1, description="Model calls per rollout.")
    agent_temperature: float = Field(1.0, ge=0, description="Sampling temperature.")
    system_prompt: str | None = Field(None, description="System message.")
    terminal_backend: str = Field(
        "local", description="Sandbox: local, docker, modal, daytona, ssh, singularity, or module:Class."
    )
    terminal_timeout: int = Field(120, ge=1, description="Seconds per terminal command.")
    terminal_lifetime: int = Field(3600, ge=1, description="Longest life of a sandbox, seconds.")
    dataset_name: str | None = Field(None, description="Hugging Face dataset id, or a local path.")
    dataset_split: str = Field("train", description="Split of the dataset.")
    prompt_field: str = Field("prompt", description="Field of the dataset that holds the prompt.")
    tool_pool_size: int = Field(128, ge=1, description="Threads for blocking tools.")
    tool_call_parser: str = Field("hermes", description="Parser that reads tool calls from raw text.")
    extra_body: dict[str, Any] | None = Field(None, description="Extra parameters for the model's API.")
    default_result_size_chars: int = Field(
        100_000, ge=1, description="Longer tool results are written to a file and replaced by a preview."
    )
    turn_budget_chars: int = Field(200_000, ge=1, description="All tool results of one turn together.")
    preview_size_chars: int = Field(1_500, ge=0, description="Length of such a preview.")
    tool_result_overrides: dict[str, int] | None = Field(None, description="Tool to its own result size.")

    allow_unisolated: bool = Field(
        False, description="Let a model run commands although this machine offers no isolation."
    )
    local_isolation: Literal["auto", "bubblewrap", "namespaces", "landlock", "none"] = Field(
        "auto", description="local backend: how to isolate; auto takes the strongest that works."
    )
    sandbox_network: Literal["none", "public"] = Field(
        "none", description="Network of the sandbox where the task does not say."
    )
    sandbox_memory_mb: int | None = Field(None, ge=16, description="Memory of one sandbox; unset: 4096.")
    sandbox_processes: int | None = Field(None, ge=8, description="Processes of one sandbox; unset: 512.")
    sandbox_creation_concurrency: int = Field(8, ge=1, description="Sandboxes created at the same time.")
    repeated_calls_limit: int | None = Field(
        None, ge=2, description="End a rollout after this many identical tool calls in a row."
    )
