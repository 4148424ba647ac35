"""What a configuration says about the web. Plain values, so that importing them costs nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Settings of the web tools; the guard on private addresses is the browser's too."""

    provider: str | None = None
    """Name of the search provider; None: the first whose key is in the environment."""
    url: str | None = None
    """Address of the provider's API, for SearXNG and for self-hosted ones."""
    allowed_hosts: tuple[str, ...] = ()
    """Hosts on private addresses that may be reached: ``name``, ``address`` or block, with ``:port``."""
    cache: str = "record"
    """``record`` keeps every answer and gives it again, ``replay`` gives recorded ones only, ``off``."""
    cache_directory: str | None = None
    """Where answers are kept; None: in the run's directory."""
    timeout: float = 30.0
    """Seconds for one page or one search."""
    max_bytes: int = 10_000_000
    """Longest body that is read of a page."""
    robots: bool = True
    """Whether pages that robots.txt keeps programs from are left alone."""
