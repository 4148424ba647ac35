"""What both command lines share: printing, and exit codes of errors. Imports nothing heavy."""

from __future__ import annotations

import os
import sys

from environments.errors import ConfigError, HermesError, MissingExtra

INTERRUPTED = 130


def report(error: HermesError) -> int:
    """Print an error to stderr without a traceback and return the exit code it stands for.

    2 is a mistake of the user or a missing extra, 1 a run that failed. A ConfigError has one problem per
    line; the lines after the first of any other error are its details.
    """
    mistake = isinstance(error, ConfigError)
    for number, line in enumerate(str(error).splitlines() or [type(error).__name__]):
        sys.stderr.write(f"error: {line}\n" if mistake or number == 0 else f"{line}\n")
    return 2 if isinstance(error, ConfigError | MissingExtra) else 1


def emit(text: str) -> int:
    """Print to stdout and return the exit code 0; a closed pipe (``| head``) is not an error."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at exit; give that flush somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
