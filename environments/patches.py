"""Async safety: the documented entry point, kept for code that calls it.

The original patched sandbox libraries so that they did not deadlock inside a running event loop.
Here every backend is asynchronous from the start and owns what it needs, so nothing is left to patch.
"""

from __future__ import annotations


def apply_patches() -> None:
    """Make blocking sandbox backends safe inside an event loop. Idempotent; at present nothing to do."""
