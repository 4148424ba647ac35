"""What differs between providers of chat completions: hosts, keys and a handful of fields.

The provider is known by the host of ``base_url``. An empty ``base_url`` means OpenRouter when the
model's name has a slash and OPENROUTER_API_KEY is set, else OpenAI. A key from the environment is only
ever sent to the provider that it belongs to; other hosts get a key only where the config names one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from environments.config import APIServerConfig
from environments.errors import AccessDenied, ConfigError

Echo = Literal["none", "reasoning_content", "reasoning_details"]
"""The field in which a provider takes reasoning back with the history."""

ReasoningRequest = Literal["effort", "openrouter", "thinking_budget"]
"""``effort``: top-level ``reasoning_effort``; ``openrouter``: a ``reasoning`` object;
``thinking_budget``: Anthropic's ``thinking`` object."""


@dataclass(frozen=True, slots=True)
class Provider:
    """The rules of one provider."""

    name: str
    hosts: tuple[str, ...] = ()
    key_variables: tuple[str, ...] = ()
    base_url: str = ""
    echo: Echo = "none"
    reasoning_request: ReasoningRequest = "effort"
    max_tokens_field: str = "max_tokens"
    keeps_call_extras: bool = False
    """Whether tool calls carry signatures that must go back."""


OPENAI = Provider(
    "openai",
    ("api.openai.com",),
    ("OPENAI_API_KEY",),
    "https://api.openai.com/v1",
    max_tokens_field="max_completion_tokens",
)
OPENROUTER = Provider(
    "openrouter",
    ("openrouter.ai",),
    ("OPENROUTER_API_KEY",),
    "https://openrouter.ai/api/v1",
    echo="reasoning_details",
    reasoning_request="openrouter",
    keeps_call_extras=True,
)
OWN = Provider("own", echo="reasoning_content")
"""A server that somebody runs himself: vLLM, SGLang, llama.cpp, a gateway."""

PROVIDERS: tuple[Provider, ...] = (
    OPENAI,
    OPENROUTER,
    Provider(
        "anthropic", ("api.anthropic.com",), ("ANTHROPIC_API_KEY",), reasoning_request="thinking_budget"
    ),
    Provider("deepseek", ("api.deepseek.com",), ("DEEPSEEK_API_KEY",)),
    Provider("together", ("api.together.xyz", "api.together.ai"), ("TOGETHER_API_KEY",)),
    Provider("fireworks", ("api.fireworks.ai",), ("FIREWORKS_API_KEY",)),
    Provider("mistral", ("api.mistral.ai",), ("MISTRAL_API_KEY",)),
    Provider("groq", ("api.groq.com",), ("GROQ_API_KEY",)),
    Provider("xai", ("api.x.ai",), ("XAI_API_KEY",)),
    Provider(
        "gemini",
        ("generativelanguage.googleapis.com",),
        ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        keeps_call_extras=True,
    ),
    Provider("nous", ("inference-api.nousresearch.com",), ("NOUS_API_KEY",)),
    Provider("cerebras", ("api.cerebras.ai",), ("CEREBRAS_API_KEY",)),
    Provider("moonshot", ("api.moonshot.ai", "api.moonshot.cn"), ("MOONSHOT_API_KEY",)),
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where calls of one server go."""

    provider: Provider
    base_url: str
    host: str
    label: str
    """Host and port: what logs and records call the server."""
    loopback: bool
    private: bool
    """On this machine or in a private network."""


def resolve_endpoint(config: APIServerConfig, environ: Mapping[str, str]) -> Endpoint:
    """The endpoint that a config means. Raises ``ConfigError`` for a URL that is none."""
    url = (config.base_url or "").strip().rstrip("/").removesuffix("/chat/completions")
    if not url:
        slash = "/" in config.model_name and environ.get("OPENROUTER_API_KEY")
        url = OPENROUTER.base_url if slash else OPENAI.base_url
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port
    except ValueError as error:
        raise ConfigError(f"openai.base_url: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError("openai.base_url must be like http://localhost:8000/v1 or https://host/v1")
    if parts.username or parts.password:
        raise ConfigError("openai.base_url holds a password; put the key into openai.api_key")
    loopback, private = _locality(host)
    provider = next((p for p in PROVIDERS if _belongs(host, p.hosts)), OWN)
    label = f"{host}:{port}" if port else host
    return Endpoint(provider, url, host, label, loopback, private)


def find_key(config: APIServerConfig, provider: Provider, environ: Mapping[str, str]) -> str:
    """The key to send: the config's own, else the provider's variable, else none ("")."""
    key = (config.api_key or "").strip()
    for variable in provider.key_variables:
        key = key or environ.get(variable, "").strip()
    if any(not character.isprintable() or character == " " for character in key):
        raise ConfigError(f"the API key for {provider.name} has blanks or control characters in it")
    return key


def require_key(endpoint: Endpoint, key: str) -> None:
    """Raise ``AccessDenied`` when a provider that needs a key gets none."""
    if key or not endpoint.provider.key_variables:
        return
    variable = " or ".join(endpoint.provider.key_variables)
    raise AccessDenied(f"no API key for {endpoint.host}: set {variable}, or openai.api_key in the config")


def _belongs(host: str, suffixes: tuple[str, ...]) -> bool:
    return any(host == suffix or host.endswith("." + suffix) for suffix in suffixes)


def _locality(host: str) -> tuple[bool, bool]:
    """Whether a host is this machine, and whether it is at least in a private network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        loopback = host == "localhost" or host.endswith(".localhost")
        private = "." not in host or host.endswith((".local", ".internal", ".lan"))
        return loopback, loopback or private
    loopback = address.is_loopback or address.is_unspecified
    return loopback, loopback or address.is_private
