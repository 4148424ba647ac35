"""Exit codes as shells tell them."""

from __future__ import annotations

import signal

from environments.sandboxes.remote_shell.machine import Exit

_SIGNALLED = 128


def exit_of(code: int) -> Exit:
    """Providers say 128 + n for signal n, as shells do; a program that ends with such a code of its own
    accord cannot be told from one that was killed."""
    number = code - _SIGNALLED
    if 0 < number < signal.NSIG:
        return Exit(signal=number)
    return Exit(code & 0xFF)
