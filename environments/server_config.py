"""Configuration of model servers: the section ``openai:``, one mapping for each server."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

ServerType = Literal["openai", "vllm", "sglang", "trl", "llamacpp", "oracle", "nop"]


class ServerBaseline(BaseModel):
    """What every model server has, whatever it speaks."""

    model_config = ConfigDict(extra="forbid", defer_build=True, protected_namespaces=())

    timeout: int = Field(
        default=1200, gt=0, description="Total deadline of one model call with its retries, seconds."
    )
    num_max_requests_at_once: int = Field(
        default=512, description="Training calls this server takes at once."
    )
    num_requests_for_eval: int = Field(default=64, description="Evaluation calls this server takes at once.")
    model_name: str = Field(
        default="default", description="Model to ask for; for llamacpp the path of a GGUF file."
    )
    rolling_buffer_length: int = Field(default=1000, description="Calls that timing statistics look back on.")
    server_type: ServerType = Field(
        default="openai",
        description="openai: any OpenAI-compatible chat API; vllm, sglang: exact tokens for training; "
        "llamacpp: a local GGUF model started for you; oracle, nop: built-in policies without a model.",
    )
    tokenizer_name: str = Field(default="none", description="Tokenizer, where it is not the model's own.")


class APIServerConfig(ServerBaseline):
    """One model server."""

    base_url: str | None = Field(default="", description="API root, for instance http://localhost:8000/v1.")
    api_key: str | None = Field(
        default="",
        description="Key. Empty: taken from the provider's variable (OPENAI_API_KEY, ...).",
        repr=False,
    )
    n_kwarg_is_ignored: bool = Field(default=False, description="The server ignores n; ask n times instead.")
    health_check: bool = Field(
        default=True, description="Kept for old configs; health is learnt from real calls."
    )
    stream: bool | None = Field(
        default=None,
        description="Stream replies underneath. Unset: for servers that are not on this machine.",
    )
    max_retries: int = Field(
        default=5, ge=0, description="New tries of a call after 408, 409, 429, 5xx or no answer."
    )
    reasoning_echo: bool | None = Field(
        default=None,
        description="Send reasoning back with the history. Unset: as the provider wants it; with exact "
        "tokens, as the chat template does.",
    )
    parse_text_calls: bool | None = Field(
        default=None,
        description="Read tool calls from the text of a reply that has none. Unset: for servers on this "
        "machine and private networks.",
    )
    context_length: int | None = Field(
        default=None, description="The model's context, where the server hides it."
    )
    prompt_price: FiniteFloat | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="US dollars per million prompt tokens. Unset: the cost is what the server states, if it "
        "does.",
    )
    cached_price: FiniteFloat | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="The same for prompt tokens from the server's cache; unset: as prompt_price.",
    )
    completion_price: FiniteFloat | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="The same for completion tokens."
    )

    @model_validator(mode="after")
    def _prices_are_whole(self) -> Self:
        prices = (self.prompt_price, self.cached_price, self.completion_price)
        if prices != (None, None, None) and None in (self.prompt_price, self.completion_price):
            raise ValueError("prompt_price and completion_price go together; 0 is a price")
        return self


def hosted_model() -> APIServerConfig:
    """What environments use unless told otherwise: a model that is good with tools, through OpenRouter."""
    return APIServerConfig(base_url="https://openrouter.ai/api/v1", model_name="anthropic/claude-sonnet-4.6")
