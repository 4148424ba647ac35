"""Endpoints for pictures. Plain values, so that importing them costs nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """An OpenAI-compatible API. Its key comes from the environment and is kept nowhere."""

    base_url: str | None = None
    model: str | None = None
    timeout: float = 120.0
