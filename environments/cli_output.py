"""What both command lines share: printing, and exit codes of errors. Imports nothing heavy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

from environments.errors import ConfigError, HermesError
from environments.terminal_text import harmless

INTERRUPTED = 130


def plural(number: int, noun: str) -> str:
    """A number of things in words.

    >>> plural(1, "task"), plural(0, "task")
    ('1 task', '0 tasks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command to its end: its own exit code, that of an error of ours, or 130 for Ctrl-C."""
    open_closed_streams()
    try:
        return command()
    except HermesError as error:
        return report(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        settle()


def open_closed_streams() -> None:
    """Give a program that was started with closed standard streams (``2>&-``) ones that lead nowhere.

    Otherwise Python has None for the stream, and the next file that is opened, a file of results
    perhaps, gets its number and with it whatever a library prints to standard error.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def report(error: HermesError) -> int:
    """Print an error to stderr without a traceback and return the exit code it stands for.

    2 is what was refused before it began, 1 what failed. A ConfigError has one problem per
    line; the lines after the first of any other error are its details.
    """
    mistake = isinstance(error, ConfigError)
    for number, line in enumerate(str(error).splitlines() or [type(error).__name__]):
        tell(f"error: {line}\n" if mistake or number == 0 else f"{line}\n")
    return 2 if error.refused else 1


def tell(text: str) -> None:
    """Print to stderr, where there is somebody to read it; that there is nobody never ends a run.

    Control characters, as names and reasons of others may hold, are shown instead of obeyed.
    """
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(harmless(text))
        sys.stderr.flush()
    except (OSError, ValueError):
        discard(sys.stderr)


def emit(text: str) -> int:
    """Print to stdout and return the exit code: 0, or 1 with a line on stderr where that fails.

    A closed pipe (``| head``) is no failure. Control characters are shown, as by ``tell``.
    """
    try:
        sys.stdout.write(harmless(text))
        sys.stdout.flush()
    except OSError as error:
        return output_failed(error)
    return 0


def output_failed(error: OSError) -> int:
    """What an error of writing to stdout means: the exit code, and a line where the reader did not leave."""
    discard(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return 0
    tell(f"error: cannot write the output: {error.strerror or error}\n")
    return 1


def settle() -> None:
    """Flush stderr while an error can still be caught: at exit it would change the exit code."""
    tell("")


def discard(stream: TextIO) -> None:
    """Let a stream that cannot be written lead nowhere: Python flushes it once more at exit."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # no file, or closed
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
