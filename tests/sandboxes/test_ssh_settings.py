"""Settings of the ssh backend, and whose a run is."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.config import HermesAgentEnvConfig
from environments.errors import ConfigError, MissingExtra
from environments.sandboxes.registry import create_backend
from environments.sandboxes.ssh import owner
from environments.sandboxes.ssh.options import Address, parse_address, read_options


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("box", Address("box")),
        ("me@box", Address("box", "me")),
        ("me@box:2222", Address("box", "me", 2222)),
        ("[::1]:22", Address("::1", None, 22)),
        ("fe80::1", Address("fe80::1")),
    ],
)
def test_addresses(text: str, wanted: Address) -> None:
    assert parse_address(text, "ssh_host") == wanted


@pytest.mark.parametrize("text", ["a b", "me@", "box:0", "box:99999", "@box", "a@b@c"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text, "ssh_host")


@given(st.text(max_size=30))
def test_any_text_is_an_address_or_a_clear_error(text: str) -> None:
    try:
        assert parse_address(text, "ssh_host").host
    except ConfigError as error:
        assert str(error)


def test_configuration_comes_before_the_environment(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("")
    variables = {
        "TERMINAL_SSH_HOST": "there",
        "TERMINAL_SSH_USER": "them",
        "TERMINAL_SSH_PORT": "2022",
        "TERMINAL_SSH_KEY": str(key),
    }
    options = read_options(HermesAgentEnvConfig(), variables)
    assert (options.target, options.key) == (Address("there", "them", 2022), str(key))
    options = read_options(
        HermesAgentEnvConfig(ssh_host="me@here:23", ssh_user="you", ssh_port=24, ssh_jump_host="a, b@c:5"),
        variables,
    )
    assert options.target == Address("here", "you", 24)
    assert options.jumps == (Address("a"), Address("c", "b", 5))
    assert "client_keys" not in read_options(HermesAgentEnvConfig(ssh_host="x"), {}).for_asyncssh()


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="ssh_host"):
        read_options(HermesAgentEnvConfig(), {})
    with pytest.raises(ConfigError, match="ssh_key"):
        read_options(HermesAgentEnvConfig(ssh_host="x", ssh_key="/nowhere"), {})
    with pytest.raises(ConfigError, match="port"):
        read_options(HermesAgentEnvConfig(ssh_host="x"), {"TERMINAL_SSH_PORT": "ssh"})


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"\[ssh\]"):
        create_backend("ssh", HermesAgentEnvConfig(ssh_host="x"), "run")


def test_who_is_dead() -> None:
    ours = owner.this_owner()
    machine, process, started = ours.rsplit(":", 2)
    assert " " not in ours
    assert int(process) == os.getpid()
    assert not owner.is_dead(ours, 10_000)
    assert owner.is_dead(f"{machine}:{process}:{int(started) + 1}", 0)
    assert owner.is_dead(f"{machine}:99999999:1", 0)
    assert not owner.is_dead("elsewhere:1:1", owner.LEASE_SECONDS - 1)
    assert owner.is_dead("elsewhere:1:1", owner.LEASE_SECONDS + 1)
    assert owner.is_dead("unknown", owner.LEASE_SECONDS + 1)
