"""What a configuration says about the browser. Plain values, so that importing them costs nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrowserSettings:
    """Settings of the browser tools."""

    path: str | None = None
    """The Chromium program; None: the first that is found in PATH."""
    timeout: float = 30.0
    """Seconds for a page to load and for an action to take effect."""
    max_contexts: int = 32
    """Rollouts that use the browser at a time; others wait."""
