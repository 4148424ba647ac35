"""Which provider a config means, and whose key goes where."""

from __future__ import annotations

import asyncio

import pytest

from environments.config import APIServerConfig
from environments.errors import AccessDenied, ConfigError
from environments.inference.providers import Endpoint, find_key, require_key, resolve_endpoint
from environments.inference.server_manager import ServerManager


def endpoint(environ: dict[str, str] | None = None, **config: object) -> Endpoint:
    return resolve_endpoint(APIServerConfig.model_validate(config), environ or {})


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://eu.api.openai.com/v1", "openai"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://api.openai.com.evil.example/v1", "own"),
        ("https://notopenrouter.ai/v1", "own"),
        ("http://localhost:8000/v1", "own"),
    ],
)
def test_the_host_decides(url: str, name: str) -> None:
    assert endpoint(base_url=url).provider.name == name


def test_an_empty_url_is_openrouter_only_with_its_key_and_a_slash() -> None:
    both = {"OPENROUTER_API_KEY": "x", "OPENAI_API_KEY": "y"}
    assert endpoint(both, model_name="a/b").host == "openrouter.ai"
    assert endpoint(both, model_name="gpt-5").host == "api.openai.com"
    assert endpoint({}, model_name="a/b").host == "api.openai.com"
    assert endpoint({}, base_url=None).host == "api.openai.com"


@pytest.mark.parametrize(
    ("host", "loopback", "private"),
    [
        ("localhost", True, True),
        ("127.0.0.1", True, True),
        ("[::1]", True, True),
        ("0.0.0.0", True, True),
        ("10.1.2.3", False, True),
        ("gpu-node", False, True),
        ("vllm.internal", False, True),
        ("8.8.8.8", False, False),
        ("models.example.com", False, False),
    ],
)
def test_what_is_near(host: str, loopback: bool, private: bool) -> None:
    found = endpoint(base_url=f"http://{host}:8000/v1")
    assert (found.loopback, found.private) == (loopback, private)


def test_a_pasted_route_is_cut_off() -> None:
    assert endpoint(base_url="http://h/v1/chat/completions/").base_url == "http://h/v1"


@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://h/v1", "http://", "http://h:port/v1"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        endpoint(base_url=url)


def test_a_password_in_the_url_is_refused_and_not_told() -> None:
    with pytest.raises(ConfigError) as caught:
        endpoint(base_url="https://me:hunter2@h/v1")
    assert "hunter2" not in str(caught.value)


def test_a_key_goes_only_to_its_own_provider() -> None:
    environ = {"OPENAI_API_KEY": "openai-key", "OPENROUTER_API_KEY": "router-key"}
    config = APIServerConfig(base_url="https://openrouter.ai/api/v1")
    assert find_key(config, endpoint(base_url=config.base_url).provider, environ) == "router-key"
    stranger = APIServerConfig(base_url="https://models.example.com/v1")
    assert find_key(stranger, endpoint(base_url=stranger.base_url).provider, environ) == ""
    named = APIServerConfig(base_url="https://models.example.com/v1", api_key=" own ")
    assert find_key(named, endpoint(base_url=named.base_url).provider, environ) == "own"


def test_a_missing_key_is_told_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    manager = ServerManager([APIServerConfig(base_url="https://openrouter.ai/api/v1")])
    with pytest.raises(AccessDenied, match="OPENROUTER_API_KEY"):
        asyncio.run(manager.start())
    require_key(endpoint(base_url="http://localhost:1/v1"), "")


def test_a_key_with_a_line_break_is_refused_and_not_told() -> None:
    config = APIServerConfig(base_url="http://h/v1", api_key="secret\nkey")
    with pytest.raises(ConfigError) as caught:
        find_key(config, endpoint(base_url="http://h/v1").provider, {})
    assert "secret" not in str(caught.value)
