"""What stands between messages and tokens: one dialect per model family.

``load_dialect("path/to/tokenizer")`` reads a tokenizer and its chat template, checks that
conversations can be extended token by token, and gives a ``Dialect``.
"""

from __future__ import annotations

from environments.dialects.base import Dialect, Rendered
from environments.dialects.loading import load_dialect

__all__ = ["Dialect", "Rendered", "load_dialect"]
