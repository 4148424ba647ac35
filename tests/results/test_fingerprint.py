"""What counts for a resume, and what never reaches a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from environments.config import APIServerConfig, BaseEnvConfig, HermesAgentEnvConfig
from environments.results.fingerprint import (
    NOT_AFFECTING,
    SERVER_NOT_AFFECTING,
    content_hash,
    differences,
    result_affecting,
    scrub,
    scrub_text,
)
from environments.results.plain import plain


class OwnConfig(HermesAgentEnvConfig):
    difficulty: str = "easy"
    seeds: list[int] = Field([1], json_schema_extra={"result_affecting": False})


def changed(env: dict[str, Any] | None = None, server: dict[str, Any] | None = None) -> bool:
    before = result_affecting(OwnConfig(), [APIServerConfig()])
    return before != result_affecting(OwnConfig(**env or {}), [APIServerConfig(**server or {})])


def test_what_may_change_between_a_run_and_its_resume() -> None:
    assert not changed({"limit": 3, "attempts": 5, "total_steps": 1, "max_num_workers": 2, "seeds": [2]})
    assert not changed({"wandb_name": "x", "use_wandb": False, "progress": "none", "retry_backoff": 9.0})
    assert not changed(
        server={"base_url": "http://u:p@h:1/v1", "api_key": "k", "timeout": 3, "max_retries": 1}
    )


def test_a_dataset_is_the_same_however_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tasks", "others"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("tasks")
    monkeypatch.chdir(tmp_path)
    names = ["tasks", "tasks/", "./tasks", str(tmp_path / "tasks"), "link", "others", "not/there"]
    noted = [result_affecting(OwnConfig(dataset_name=name), [])["env"]["dataset_name"] for name in names]
    assert noted == [str(tmp_path / "tasks")] * 5 + [str(tmp_path / "others"), "not/there"]


def test_what_must_stay() -> None:
    for env in (
        {"agent_temperature": 0.3},
        {"system_prompt": "x"},
        {"enabled_toolsets": ["file"]},
        {"max_agent_turns": 2},
        {"seed": 4},
        {"difficulty": "hard"},
        {"extra_body": {"top_k": 3}},
        {"rollout_timeout": 5.0},
    ):
        assert changed(env), env
    assert changed(server={"model_name": "other"}) and changed(server={"server_type": "vllm"})


def test_the_number_and_order_of_servers_do_not_count() -> None:
    one, two = APIServerConfig(model_name="a", base_url="x"), APIServerConfig(model_name="a", base_url="y")
    other = APIServerConfig(model_name="b")
    config = BaseEnvConfig()
    assert result_affecting(config, [one]) == result_affecting(config, [one, two])
    assert result_affecting(config, [one, other]) == result_affecting(config, [other, two])
    assert result_affecting(config, [one]) != result_affecting(config, [other])


def test_the_lists_name_real_fields() -> None:
    benchmarks = {"max_concurrent_tasks", "eval_concurrency", "task_filter", "skip_tasks", "db_dir"}
    assert NOT_AFFECTING - benchmarks <= set(HermesAgentEnvConfig.model_fields)
    assert set(APIServerConfig.model_fields) >= SERVER_NOT_AFFECTING


def test_scrub_removes_secrets_and_nothing_else() -> None:
    config = APIServerConfig(api_key="sk-abcdef", base_url="http://user:pw@host:1/v1?api_key=hush&x=1")
    assert "sk-abcdef" not in json.dumps(scrub(config))
    assert scrub(config)["base_url"] == "http://***@host:1/v1?api_key=***&x=1"
    body = {
        "headers": {"Authorization": "Bearer abc", "X-Api-Key": "k", "x-title": "t"},
        "hf_token": "hush",
        "awsSecretAccessKey": "hush",
        "dbPassword": "hush",
        "apikey": "hush",
        "tokens": ["hush"],
        "max_tokens": 5,
        "token_budget": 7,
        "tokenizer_name": "nous",
        "stop_tokens": ["</s>"],
        "monkey": "ape",
        "api_key": "",
        "note": "key is sk-" + "a1b2" * 6,
    }
    clean = scrub(HermesAgentEnvConfig(extra_body=body))["extra_body"]
    assert "hush" not in json.dumps(clean)
    assert clean["headers"] == {"Authorization": "***", "X-Api-Key": "***", "x-title": "t"}
    assert {clean["max_tokens"], clean["token_budget"], clean["tokenizer_name"]} == {5, 7, "nous"}
    assert clean["stop_tokens"] == ["</s>"] and clean["monkey"] == "ape" and clean["api_key"] == ""
    assert clean["note"] == "key is ***"
    assert scrub(scrub(config)) == scrub(config)


def test_scrub_text_leaves_prose_alone() -> None:
    prose = "A basic understanding of bearer documents; see http://host/a@b and sk-learn."
    assert scrub_text(prose) == prose
    assert "s3cr3t" not in scrub_text("Authorization: Bearer s3cr3ts3cr3ts3cr3t1")


def test_differences_name_nested_entries() -> None:
    assert differences({"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"b": 2, "c": [1, 2]}, "e": None}) == [
        ("a.b", "1", "2"),
        ("d", "1", "not set"),
        ("e", "not set", "null"),
    ]


class Colour(Enum):
    RED = "red"


class Opaque:
    def __init__(self, value: int) -> None:
        self.value = value
        self.me = self


@dataclass
class Point:
    x: int


def test_hashes_are_the_same_for_the_same_content() -> None:
    assert len(content_hash({})) == 16
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert content_hash(Opaque(1)) == content_hash(Opaque(1)) != content_hash(Opaque(2))
    assert content_hash({"x": object()}) == content_hash({"x": object()})
    assert plain({1: Colour.RED, "p": Path("a"), "q": Point(3), "s": {2, 1}, "n": float("nan")}) == {
        "1": "red",
        "p": "a",
        "q": {"x": 3},
        "s": [1, 2],
        "n": None,
    }
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert content_hash(deep)


@given(st.recursive(st.none() | st.text() | st.binary() | st.floats() | st.integers(), st.lists))
def test_anything_can_be_hashed(value: Any) -> None:
    assert content_hash(value) == content_hash(value)
    assert plain(plain(value)) == plain(value)
