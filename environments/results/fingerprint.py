"""What a configuration means for results, and what of it may be written down.

``result_affecting`` keeps what must be equal for a resume, ``scrub`` what is no secret,
``differences`` names what changed between two of them. ``content_hash`` lives in ``plain``.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from environments.results.plain import canonical_json, content_hash, plain

__all__ = ["content_hash", "defaults", "differences", "result_affecting", "scrub", "scrub_text"]

REMOVED = "***"
"""Stands where a secret was."""

_CONCURRENCY = {
    "max_num_workers",
    "max_eval_workers",
    "max_num_workers_per_node",
    "tool_pool_size",
    "sandbox_creation_concurrency",
    "max_concurrent_tasks",
    "browser_max_contexts",
    "eval_concurrency",
}
_SCHEDULE = {
    "steps_per_eval",
    "eval_handling",
    "eval_limit_ratio",
    "inference_weight",
    "batch_size",
    "max_batches_offpolicy",
    "min_batch_allocation",
    "rollout_server_url",
    "worker_timeout",
    "total_steps",
}
_LOGGING = {
    "use_wandb",
    "wandb_name",
    "num_rollouts_to_keep",
    "num_rollouts_per_group_for_logging",
    "min_items_sent_before_logging",
    "progress",
}
_OUTPUT = {
    "data_path_to_save_groups",
    "data_dir_to_save_evals",
    "db_dir",
    "include_messages",
    "ensure_scores_are_not_same",
}
_SELECTION = {"limit", "item_ids", "task_filter", "skip_tasks", "attempts", "resume"}
_GROUPS = {"failed_attempts", "over_limit_attempts", "branch_reward", "long_sequences"}
_FAILURES = {
    "model_error_retries",
    "sandbox_error_retries",
    "verifier_error_retries",
    "retry_backoff",
    "reward_timeout",
    "terminal_lifetime",
}
_PLACES = {
    "browser_path",
    "web_cache_directory",
    "web_search_url",
    "vision_base_url",
    "image_base_url",
    "hermes_python",
    "hermes_variables",
    "hermes_home",
}
_LIFE_CYCLE = {"keep_sandboxes", "kept_sandbox_lifetime"}
_PERMISSIONS = {"allow_unisolated", "local_isolation"}
NOT_AFFECTING: frozenset[str] = frozenset().union(
    _CONCURRENCY,
    _SCHEDULE,
    _LOGGING,
    _OUTPUT,
    _SELECTION,
    _GROUPS,
    _FAILURES,
    _PLACES,
    _LIFE_CYCLE,
    _PERMISSIONS,
)
"""Environment fields that may change between a run and its resume."""

SERVER_NOT_AFFECTING = frozenset(
    {
        "base_url",
        "api_key",
        "timeout",
        "num_max_requests_at_once",
        "num_requests_for_eval",
        "rolling_buffer_length",
        "n_kwarg_is_ignored",
        "health_check",
        "stream",
        "max_retries",
    }
)
"""Server fields that may change between a run and its resume."""


def result_affecting(env_config: Any, server_configs: Iterable[Any]) -> dict[str, Any]:
    """The settings that results depend on, as plain data without secrets.

    Every field counts unless it is listed above or declared with
    ``Field(..., json_schema_extra={"result_affecting": False})``, so a field of a user's own config
    counts by itself. Servers count as the set of different models, not by their number or address.
    """
    servers = {canonical_json(server): server for server in map(_server, server_configs)}
    return {
        "env": _whole_paths(_fields(env_config, NOT_AFFECTING)),
        "servers": [servers[key] for key in sorted(servers)],
    }


def defaults(env_config: Any, server_configs: Iterable[Any]) -> dict[str, Any]:
    """What ``result_affecting`` would be where nothing was set, as far as fields have defaults.

    A run that was made before there was a field counts as one with its default.
    """
    servers = {canonical_json(_server(config)): _defaults(config) for config in server_configs}
    return {"env": _defaults(env_config), "servers": [servers[key] for key in sorted(servers)]}


def scrub(config: Any) -> dict[str, Any]:
    """A configuration (model, dataclass or mapping) as plain data with its secrets replaced by ``***``."""
    data = _scrub(plain(config))
    return data if isinstance(data, dict) else {"value": data}


def scrub_text(text: str) -> str:
    """Text without credentials in URLs, bearer tokens and keys of well-known shapes."""
    for pattern, replacement in _SECRET_TEXTS:
        text = pattern.sub(replacement, text)
    return text


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], usual: Mapping[str, Any] | None = None
) -> list[tuple[str, str, str]]:
    """Name and both values of every entry that differs, nested ones with dots in their names.

    What ``before`` has not counts as it is in ``usual``.
    """
    new = dict(_flatten(plain(now)))
    unset = {name: value for name, value in _flatten(plain(usual or {})) if name in new}
    old = unset | dict(_flatten(plain(before)))
    return [
        (name, old.get(name, "not set"), new.get(name, "not set"))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _server(config: Any) -> dict[str, Any]:
    fields = _fields(config, SERVER_NOT_AFFECTING)
    if fields.get("server_type") == "llamacpp" and isinstance(fields.get("model_name"), str):
        fields["model_name"] = PurePath(fields["model_name"]).name  # the model, wherever it lies
    return fields


def _fields(config: Any, left_out: frozenset[str]) -> dict[str, Any]:
    declared = {
        name
        for name, info in getattr(type(config), "model_fields", {}).items()
        if isinstance(info.json_schema_extra, dict)
        and info.json_schema_extra.get("result_affecting") is False
    }
    return {name: value for name, value in scrub(config).items() if name not in left_out | declared}


def _whole_paths(fields: dict[str, Any]) -> dict[str, Any]:
    """A dataset on this machine is the same one however its path was written."""
    name = fields.get("dataset_name")
    if isinstance(name, str) and name:
        with contextlib.suppress(OSError, ValueError):  # what is no path at all
            return fields | {"dataset_name": str(Path(name).resolve(strict=True))}
    return fields


def _defaults(config: Any) -> dict[str, Any]:
    fields = getattr(type(config), "model_fields", {})
    values = {
        name: info.get_default(call_default_factory=True)
        for name, info in fields.items()
        if not info.is_required() and not info.default_factory_takes_validated_data
    }
    return scrub(values)


def _scrub(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: REMOVED if _is_secret(key, item) else _scrub(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_scrub(item) for item in value]
    return scrub_text(value) if isinstance(value, str) else value


_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_ALWAYS_SECRET = {
    "secret",
    "secrets",
    "password",
    "passwords",
    "passwd",
    "pwd",
    "passphrase",
    "credential",
    "credentials",
    "authorization",
    "auth",
    "bearer",
    "cookie",
    "cookies",
    "apikey",
    "apikeys",
    "authtoken",
    "accesstoken",
}
_SECRET_AT_THE_END = {"key", "keys", "token", "tokens"}
_HARMLESS_TOKENS = {
    "stop",
    "pad",
    "eos",
    "bos",
    "unk",
    "sep",
    "cls",
    "mask",
    "special",
    "max",
    "min",
    "think",
    "start",
    "end",
}
_SECRET_TEXTS = (
    (re.compile(r"(?<=://)[^/\s@?#\"']+@"), f"{REMOVED}@"),
    (
        re.compile(r"(?i)([?&][^=&\s]*(?:key|token|secret|password|signature)[^=&\s]*=)[^&\s\"']+"),
        rf"\1{REMOVED}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?=\S*\d)[A-Za-z0-9._~+/=-]{16,}"), rf"\1 {REMOVED}"),
    (re.compile(r"\b(?:sk-|hf_|gh[pousr]_|github_pat_|xox[a-z]-|AKIA|AIza)[A-Za-z0-9_-]{16,}"), REMOVED),
)


def _is_secret(name: str, value: Any) -> bool:
    if value in (None, "") or isinstance(value, bool | int | float):
        return False  # nothing there, or a limit such as max_tokens
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    if _ALWAYS_SECRET.intersection(words) or name.lower().replace("-", "").replace("_", "").endswith(
        "apikey"
    ):
        return True
    harmless = len(words) > 1 and words[-1] in ("token", "tokens") and words[-2] in _HARMLESS_TOKENS
    return words[-1] in _SECRET_AT_THE_END and not harmless


def _flatten(value: Any, name: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, Sequence) and not isinstance(value, str) and any(map(_is_nested, value)):
        for index, item in enumerate(value):
            yield from _flatten(item, f"{name}.{index}")
    else:
        yield name, json.dumps(value, sort_keys=True, ensure_ascii=False)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping)
