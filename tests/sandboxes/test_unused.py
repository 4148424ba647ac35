"""Settings that a backend cannot use are named; every other one is taken as given."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from environments.config import HermesAgentEnvConfig
from environments.sandboxes.registry import NAMES
from environments.sandboxes.unused import unused_settings


@pytest.mark.parametrize(
    ("backend", "settings", "named"),
    [
        ("local", {"docker_image": "debian"}, ["docker_image"]),
        ("local", {"singularity_image": "x.sif", "ssh_host": "box"}, ["singularity_image", "ssh_host"]),
        ("docker", {"docker_image": "debian", "sandbox_memory_mb": 64, "sandbox_processes": 64}, []),
        (
            "docker",
            {"local_isolation": "landlock", "allow_unisolated": True},
            ["local_isolation", "allow_un"],
        ),
        ("ssh", {"ssh_host": "box", "sandbox_memory_mb": 64}, ["sandbox_memory_mb"]),
        ("modal", {"sandbox_processes": 64, "sandbox_memory_mb": 64}, ["sandbox_processes"]),
        ("local", {"sandbox_allowed_hosts": ["pypi.org"]}, ["sandbox_allowed_hosts"]),
        ("local", {"sandbox_allowed_hosts": ["pypi.org"], "sandbox_network": "allow-list"}, []),
        ("my_module:MyBackend", {"docker_image": "debian", "ssh_host": "box"}, []),
    ],
)
def test_a_setting_that_the_backend_does_not_use_is_named(
    backend: str, settings: dict[str, Any], named: list[str]
) -> None:
    said = unused_settings(HermesAgentEnvConfig(terminal_backend=backend, **settings))
    assert len(said) == len(named)
    for text, name in zip(said, named, strict=True):
        assert f"--env.{name}" in text


@pytest.mark.parametrize("backend", NAMES)
def test_defaults_are_nothing_to_speak_of(backend: str) -> None:
    assert unused_settings(HermesAgentEnvConfig(terminal_backend=backend)) == []


def test_a_run_says_it_once_at_its_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from environments.terminal_test_env.terminal_test_env import TerminalTestEnv

    output = {"data_path_to_save_groups": str(tmp_path / "out.jsonl"), "use_wandb": False, "total_steps": 2}
    with caplog.at_level(logging.WARNING):
        asyncio.run(
            TerminalTestEnv.run(
                "process", env={**output, "docker_image": "debian"}, openai={"server_type": "oracle"}
            )
        )
    assert [r.getMessage() for r in caplog.records if "docker_image" in r.getMessage()] == [
        "the local backend does not use --env.docker_image; docker does"
    ]
