"""Configuration: plain pydantic models, one per section of the command line and of YAML.

``env:`` is a ``BaseEnvConfig`` (or the environment's own subclass), ``openai:`` one or several
``APIServerConfig`` (see ``server_config``). Names and defaults of Atropos and of Hermes Agent are kept;
what is new stands after them. ``cli.py`` turns the fields into flags; this module knows nothing of the
command line.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat

from environments.server_config import APIServerConfig, ServerBaseline, ServerType, hosted_model

__all__ = [
    "APIServerConfig",
    "BaseEnvConfig",
    "EvalHandlingEnum",
    "HermesAgentEnvConfig",
    "ReasoningEffort",
    "ServerBaseline",
    "ServerType",
    "hosted_model",
]

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class EvalHandlingEnum(Enum):
    """What training does while a periodic evaluation runs."""

    STOP_TRAIN = "STOP_TRAIN"
    LIMIT_TRAIN = "LIMIT_TRAIN"
    NONE = "NONE"


def _enum_value(value: Any) -> Any:
    """The value of a foreign enum, such as the one of an installed ``atroposlib``."""
    return value.value if isinstance(value, Enum) and not isinstance(value, EvalHandlingEnum) else value


class BaseEnvConfig(BaseModel):
    """Settings of every environment (the fields of Atropos, then ours)."""

    model_config = ConfigDict(extra="forbid", defer_build=True, protected_namespaces=())

    group_size: int = Field(default=4, ge=1, description="Rollouts of one item that form a group.")
    max_num_workers: int = Field(
        default=-1, description="Groups in flight; -1: max_num_workers_per_node x servers."
    )
    max_eval_workers: int = Field(default=16, ge=1, description="Rollouts in flight during evaluate.")
    max_num_workers_per_node: int = Field(default=8, description="Groups in flight per model server.")
    steps_per_eval: int = Field(default=100, description="Training steps between two evaluations.")
    eval_at_start: bool = Field(default=False, description="serve: evaluate before the first step, too.")
    eval_at_end: bool = Field(default=False, description="serve: evaluate after the last step, too.")
    allow_placeholder_tokens: bool = Field(
        default=False, description="serve: send groups without real tokens (to try out the plumbing)."
    )
    max_token_length: int = Field(
        default=2048, description="Longest reply in tokens, and longest sequence sent to the trainer."
    )
    eval_handling: Annotated[EvalHandlingEnum, BeforeValidator(_enum_value)] = Field(
        default=EvalHandlingEnum.STOP_TRAIN, description="What training does while an evaluation runs."
    )
    eval_limit_ratio: FiniteFloat = Field(
        default=0.5, description="Share of workers left to training with LIMIT_TRAIN."
    )
    inference_weight: FiniteFloat = Field(
        default=1.0, description="Weight of this environment beside others."
    )
    batch_size: int = Field(default=-1, description="Sequences in a training batch; -1: as the trainer says.")
    max_batches_offpolicy: int = Field(default=3, description="Batches that may wait for the trainer.")
    tokenizer_name: str = Field(
        default="NousResearch/DeepHermes-3-Llama-3-3B-Preview", description="Tokenizer of the trained model."
    )
    use_wandb: bool = Field(
        default=True, description="Log to Weights & Biases where it is installed and has a key."
    )
    rollout_server_url: str = Field(default="http://localhost:8000", description="Trajectory API for serve.")
    total_steps: int = Field(default=1000, description="process: groups to make. serve: training steps.")
    wandb_name: str | None = Field(
        default=None, description="Name of the run; default: the environment's name."
    )
    num_rollouts_to_keep: int = Field(default=32, description="Example rollouts kept for W&B.")
    num_rollouts_per_group_for_logging: int = Field(
        default=1, description="Example rollouts per group; -1: all."
    )
    ensure_scores_are_not_same: bool = Field(
        default=True, description="Leave out groups whose scores are all equal."
    )
    data_path_to_save_groups: str | None = Field(
        default=None, description="process: JSONL file for the groups."
    )
    data_dir_to_save_evals: str | None = Field(
        default=None, description="evaluate: directory for the results."
    )
    min_items_sent_before_logging: int = Field(default=2, description="Groups sent between two logs.")
    include_messages: bool = Field(default=False, description="Keep the conversation in each group.")
    min_batch_allocation: FiniteFloat | None = Field(
        default=None, description="Smallest share of a batch, 0 to 1."
    )
    worker_timeout: FiniteFloat = Field(
        default=600, description="serve: seconds until a group counts as stuck."
    )
    thinking_mode: bool = Field(
        default=False, description="Ask the model to think before it answers (adds to the system prompt)."
    )
    reasoning_effort: ReasoningEffort | None = Field(default=None, description="How much the model reasons.")
    max_reasoning_tokens: int | None = Field(
        default=None, ge=1024, le=32000, description="Upper limit of reasoning tokens, 1024 to 32000."
    )
    custom_thinking_prompt: str | None = Field(default=None, description="Text that asks for thinking.")

    seed: int = Field(default=0, description="Seed of the run; groups and attempts derive theirs from it.")
    limit: int | None = Field(default=None, ge=1, description="Use at most this many different items.")
    item_ids: list[str] | None = Field(
        default=None, description="Use only items whose id matches one of these globs."
    )
    attempts: int = Field(default=1, ge=1, description="evaluate: attempts per item.")
    resume: bool = Field(
        default=True, description="Go on from the output file; false keeps the old file aside."
    )
    model_error_retries: int = Field(
        default=3, ge=0, description="New rollouts after a failure of the model server."
    )
    sandbox_error_retries: int = Field(
        default=3, ge=0, description="New rollouts after a failure of the sandbox."
    )
    verifier_error_retries: int = Field(
        default=2, ge=0, description="New gradings after a failure of the verifier."
    )
    retry_backoff: FiniteFloat = Field(
        default=1.0, ge=0, description="Seconds before the first new rollout; doubles."
    )
    failed_attempts: Literal["refill", "smaller"] = Field(
        default="smaller",
        description="A group with a failed attempt is sent smaller, or the attempt is refilled.",
    )
    over_limit_attempts: Literal["train", "baseline"] = Field(
        default="train",
        description="Attempts that ran out of context or of a budget train with the reward they have, or "
        "count for the group's mean alone.",
    )
    branch_reward: Literal["every", "last"] = Field(
        default="every",
        description="Phase 2, where a rollout's history forked: every branch trains with the rollout's "
        "reward, or the last one alone.",
    )
    long_sequences: Literal["drop", "truncate"] = Field(
        default="drop",
        description="serve: sequences longer than the trainer takes are left out, or end with the last "
        "reply that fits.",
    )
    rollout_timeout: FiniteFloat | None = Field(
        default=None,
        gt=0,
        description="Seconds the agent may work on one item; then it is graded as it stands.",
    )
    rollout_timeout_clock: Literal["working", "wall"] = Field(
        default="working",
        description="Whether waiting for rate limits and queues counts against rollout_timeout.",
    )
    reward_timeout: FiniteFloat | None = Field(
        default=600, gt=0, description="Seconds compute_reward may take."
    )
    top_p: FiniteFloat | None = Field(default=None, description="Nucleus sampling.")
    token_budget: int | None = Field(default=None, ge=1, description="Completion tokens one rollout may use.")
    cost_budget: FiniteFloat | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="US dollars that the model calls of one rollout may cost.",
    )
    progress: Literal["auto", "live", "plain", "none"] = Field(
        default="auto", description="Progress display; auto: live on a terminal, plain lines elsewhere."
    )


class HermesAgentEnvConfig(BaseEnvConfig):
    """Settings of environments whose agent uses tools in a sandbox."""

    enabled_toolsets: list[str] | None = Field(default=None, description="Toolsets to enable; unset: all.")
    disabled_toolsets: list[str] | None = Field(
        default=None, description="Toolsets to leave out, on top of whatever was chosen."
    )
    distribution: str | None = Field(
        default=None, description="Named probability distribution that toolsets are drawn from, per group."
    )
    max_agent_turns: int = Field(default=30, ge=1, description="Model calls per rollout.")
    agent_temperature: FiniteFloat = Field(default=1.0, ge=0, description="Sampling temperature.")
    system_prompt: str | None = Field(default=None, description="System message.")
    terminal_backend: str = Field(
        default="local",
        description="Sandbox: local, docker, modal, daytona, ssh, singularity, or module:Class.",
    )
    terminal_timeout: int = Field(default=120, ge=1, description="Seconds per terminal command.")
    terminal_lifetime: int = Field(default=3600, ge=1, description="Longest life of a sandbox, seconds.")
    dataset_name: str | None = Field(default=None, description="Hugging Face dataset id, or a local path.")
    dataset_split: str = Field(default="train", description="Split of the dataset.")
    prompt_field: str = Field(default="prompt", description="Field of the dataset that holds the prompt.")
    tool_pool_size: int = Field(default=128, ge=1, description="Threads for blocking tools.")
    tool_call_parser: str = Field(default="hermes", description="Parser that reads tool calls from raw text.")
    extra_body: dict[str, Any] | None = Field(
        default=None, description="Extra parameters for the model's API."
    )
    context_policy: Literal["stop", "drop_oldest_tool_results", "summarise"] = Field(
        default="stop",
        description="What becomes of a conversation that no longer fits the model's context (known from the "
        "server, or openai.context_length).",
    )
    default_result_size_chars: int = Field(
        default=100_000,
        ge=1,
        description="Longer tool results are written to a file and replaced by a preview.",
    )
    turn_budget_chars: int = Field(
        default=200_000, ge=1, description="All tool results of one turn together."
    )
    preview_size_chars: int = Field(default=1_500, ge=0, description="Length of such a preview.")
    tool_result_overrides: dict[str, int] | None = Field(
        default=None, description="Tool to its own result size."
    )

    web_search_provider: Literal["exa", "tavily", "firecrawl", "brave", "searxng", "duckduckgo"] | None = (
        Field(
            default=None,
            description="Who answers web_search; unset: the first whose variable is set (EXA_API_KEY, "
            "TAVILY_API_KEY, FIRECRAWL_API_KEY, BRAVE_API_KEY, SEARXNG_URL). duckduckgo needs no key.",
        )
    )
    web_search_url: str | None = Field(
        default=None, description="Address of the search API; needed for SearXNG, else the provider's own."
    )
    web_allowed_hosts: list[str] | None = Field(
        default=None,
        description="Hosts on private addresses that web and browser tools may reach: names, addresses, "
        "blocks; with :port where it is not 80 or 443.",
    )
    web_cache: Literal["record", "replay", "off"] = Field(
        default="record",
        description="Web answers: kept and given again, kept ones alone (no fetching), or not kept.",
    )
    web_cache_directory: str | None = Field(
        default=None, description="Directory of recorded web answers; unset: in the run's own."
    )
    web_timeout: FiniteFloat = Field(default=30.0, gt=0, description="Seconds for one page or one search.")
    web_max_bytes: int = Field(default=10_000_000, ge=1, description="Longest page that is read.")
    web_robots: bool = Field(default=True, description="Leave alone what robots.txt forbids programs.")
    browser_path: str | None = Field(
        default=None, description="Chromium program of the browser tools; unset: found in PATH."
    )
    browser_timeout: FiniteFloat = Field(
        default=30.0, gt=0, description="Seconds for a page to load or an action to take effect."
    )
    browser_max_contexts: int = Field(
        default=32, ge=1, description="Rollouts that use the browser at a time; others wait."
    )
    vision_base_url: str | None = Field(
        default=None,
        description="OpenAI-compatible API for vision_analyze and browser_vision; its key: VISION_API_KEY, "
        "or OPENAI_API_KEY for OpenAI's own.",
    )
    vision_model: str | None = Field(default=None, description="Model that looks at pictures.")
    image_base_url: str | None = Field(
        default=None,
        description="OpenAI-compatible API for image_generate; its key: IMAGE_API_KEY, or OPENAI_API_KEY "
        "for OpenAI's own.",
    )
    image_model: str | None = Field(default=None, description="Model that makes pictures.")

    mcp_servers: dict[str, dict[str, Any]] | None = Field(
        default=None,
        description="MCP servers whose tools the model gets, by name: command or url, env, headers, shared, "
        "timeout, start_timeout.",
    )
    hermes_python: str | None = Field(
        default=None,
        description="Python program of a virtual environment with Hermes Agent, whose other tools "
        "hermes_tools and ctx.call_tool then reach.",
    )
    hermes_tools: list[str] | None = Field(
        default=None, description="Tools and toolsets of that Hermes Agent that the model gets."
    )
    hermes_variables: list[str] | None = Field(
        default=None, description="Names of variables (keys, say) that its process gets of ours."
    )
    hermes_home: str | None = Field(
        default=None,
        description="Its home directory (HERMES_HOME) for all rollouts; unset: an empty one for each.",
    )
    hermes_timeout: FiniteFloat = Field(
        default=300.0, gt=0, description="Seconds of one call of such a tool."
    )
    allow_unisolated: bool = Field(
        default=False, description="Let a model run commands although this machine offers no isolation."
    )
    local_isolation: Literal["auto", "bubblewrap", "namespaces", "landlock", "none"] = Field(
        default="auto", description="local backend: how to isolate; auto takes the strongest that works."
    )
    sandbox_network: Literal["none", "public", "allow-list"] = Field(
        default="none",
        description="Network of the sandbox where the task does not say; allow-list: the hosts of "
        "sandbox_allowed_hosts.",
    )
    sandbox_allowed_hosts: list[str] | None = Field(
        default=None,
        description="Hosts for the network allow-list: names, patterns (*.pypi.org), addresses, blocks; "
        "with :port where it is not 80 or 443.",
    )
    sandbox_memory_mb: int | None = Field(
        default=None, ge=16, description="Memory of one sandbox; unset: 4096."
    )
    sandbox_processes: int | None = Field(
        default=None, ge=8, description="Processes of one sandbox; unset: 512."
    )
    sandbox_creation_concurrency: int = Field(
        default=8, ge=1, description="Sandboxes created at the same time."
    )
    keep_sandboxes: Literal["none", "failed", "all"] = Field(
        default="none",
        description="Sandboxes that live on after their rollouts, to be looked at: failed keeps those of "
        "attempts that had an error or did not pass.",
    )
    kept_sandbox_lifetime: int = Field(
        default=14_400, ge=1, description="Seconds that a kept sandbox lives on."
    )
    ssh_host: str | None = Field(
        default=None, description="ssh backend: machine, [user@]host[:port]; unset: TERMINAL_SSH_HOST."
    )
    ssh_user: str | None = Field(
        default=None, description="ssh backend: user; unset: TERMINAL_SSH_USER, then ~/.ssh/config."
    )
    ssh_port: int | None = Field(
        default=None, ge=1, le=65535, description="ssh backend: port; unset: TERMINAL_SSH_PORT."
    )
    ssh_key: str | None = Field(
        default=None,
        description="ssh backend: private key file; unset: TERMINAL_SSH_KEY, then the agent and ~/.ssh.",
    )
    ssh_known_hosts: str | None = Field(
        default=None, description="ssh backend: file with host keys; unset: ~/.ssh/known_hosts."
    )
    ssh_jump_host: str | None = Field(
        default=None, description="ssh backend: [user@]host[:port] to go through; several with commas."
    )
    docker_image: str | None = Field(
        default=None,
        description="docker backend: image of tasks that name none: a reference, or a directory with a "
        "Dockerfile; unset: TERMINAL_DOCKER_IMAGE.",
    )
    singularity_image: str | None = Field(
        default=None,
        description="singularity backend: image of tasks that name none: a registry reference, SIF file or "
        "directory.",
    )
    repeated_calls_limit: int | None = Field(
        default=None, ge=2, description="End a rollout after this many identical tool calls in a row."
    )
