"""``task.toml`` in all its versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import ConfigError
from environments.tasks.task_file import parse
from environments.tasks.toml_table import parse_size

FULL = """
schema_version = "1.4"
artifacts = ["/app/out", { source = "/app/data", exclude = ["*.tmp"] }]
multi_step_reward_strategy = "final"
something_new = 3

[task]
name = "org/one"

[metadata]
category = "games"
tags = ["a", "b"]

[agent]
timeout_sec = 900.0
user = 1000

[verifier]
timeout_sec = 300
keep = "all"
env = { LEVEL = 3, NAME = "x" }
environment_mode = "separate"
[verifier.environment]
docker_image = "verifier:1"

[environment]
docker_image = "image:1"
cpus = 2
memory_mb = 4096
storage = "10G"
gpus = 1
workdir = "/app"
network_mode = "allowlist"
allowed_hosts = ["example.org"]
mcp_servers = []
[environment.healthcheck]
command = "test -e /ready"
retries = 7

[solution]
env = { HINT = "42" }

[[steps]]
name = "first"
min_reward = 0.5
[steps.agent]
timeout_sec = 10
[steps.verifier]
timeout_sec = 20

[[steps]]
name = "second"
min_reward = { quality = 0.2 }
artifacts = ["/app/more"]
"""


def test_every_key_of_a_new_file_is_read() -> None:
    found = parse(FULL, "task.toml")
    machine = found.machine
    assert (machine.docker_image, machine.cpus, machine.memory_mb, machine.gpus) == ("image:1", 2.0, 4096, 1)
    assert (machine.storage_mb, machine.workdir, machine.network) == (10240, "/app", "allowlist")
    assert machine.allowed_hosts == ("example.org",)
    assert machine.healthcheck is not None
    assert (machine.healthcheck.command, machine.healthcheck.retries) == ("test -e /ready", 7)
    assert (found.agent_timeout, found.agent_user) == (900.0, "1000")
    assert found.verifier.env == {"LEVEL": "3", "NAME": "x"}
    assert (found.verifier.mode, found.verifier.timeout, found.verifier.keep) == ("separate", 300.0, "all")
    assert found.verifier.machine is not None and found.verifier.machine.docker_image == "verifier:1"
    assert found.solution_env == {"HINT": "42"}
    assert (found.reward_strategy, found.schema_version, found.title) == ("final", "1.4", "org/one")
    assert [a.source for a in found.artifacts] == ["/app/out", "/app/data"]
    assert found.artifacts[1].exclude == ("*.tmp",)


def test_a_step_takes_from_the_task_what_it_leaves_open() -> None:
    first, second = parse(FULL, "task.toml").steps
    assert (first.agent_timeout, first.verifier.timeout, first.verifier.keep) == (10.0, 20.0, "all")
    assert (second.agent_timeout, second.verifier.timeout) == (None, 300.0)
    assert (first.min_reward, second.min_reward) == (0.5, {"quality": 0.2})
    assert [a.source for a in second.artifacts] == ["/app/out", "/app/data", "/app/more"]


def test_unknown_keys_are_kept() -> None:
    assert parse(FULL, "t").unknown == {"something_new": 3, "environment.mcp_servers": []}


def test_the_old_spellings_mean_the_same() -> None:
    old = parse(
        'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "512M"\nallow_internet = false\n', "t"
    )
    assert (old.machine.memory_mb, old.machine.storage_mb) == (2048, 512)
    assert (old.machine.network, old.schema_version) == ("no-network", "1.0")


def test_an_empty_file_has_the_defaults_of_the_format() -> None:
    found = parse("", "t")
    assert found.verifier.timeout is None and found.machine.build_timeout == 600.0
    assert found.machine.network is None and found.steps == () and found.agent_timeout is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[agent\n", "line 1"),
        ('[agent]\ntimeout_sec = "soon"', "agent.timeout_sec = 'soon'"),
        ("[agent]\ntimeout_sec = nan", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec = 0.0; it must be above 0"),
        ("[agent]\ntimeout_sec = 1e300", "agent.timeout_sec"),
        ("[verifier]\ntimeout_sec = 0", "verifier.timeout_sec"),
        ("[environment]\nbuild_timeout_sec = 0", "environment.build_timeout_sec"),
        ('[environment.healthcheck]\ncommand = "true"\ntimeout_sec = 0', "healthcheck.timeout_sec"),
        ('[environment]\nmemory = "\uff12G"', "environment.memory"),
        ("[environment]\ncpus = true", "environment.cpus"),
        ("[environment]\ngpus = 1.5", "whole number"),
        ('[environment]\nnetwork_mode = "open"', "one of public"),
        ('[environment]\nmemory_mb = 3\nmemory = "2G"', "contradict"),
        ('[environment]\nmemory = "much"', "512M"),
        ("agent = 3", "must be a table"),
        ("[[steps]]\n", "name"),
        ('[[steps]]\nname = "../x"', "name"),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "a"', "of its own"),
        ('artifacts = ["/a/../b"]', "without '..'"),
        ("[environment.healthcheck]\nretries = 1", "needs a command"),
        ('[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n', "no environment of its own"),
        ('[verifier]\nkeep = "some"', "one of none"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")) as caught:
        parse(text, "some/task.toml")
    assert "some/task.toml" in str(caught.value)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), st.lists, max_leaves=5))
def test_no_value_of_a_size_is_misread(value: Any) -> None:
    size = parse_size(str(value))
    assert size is None or size > 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512), ("1.5g", 1536), ("2GiB", 2048), ("1048576", 1), ("", None), ("-1G", None)],
)
def test_sizes(text: str, size: int | None) -> None:
    assert parse_size(text) == size
