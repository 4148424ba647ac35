"""What the methods of a sandbox can be given, checked before anything is sent, so that all backends answer
alike.

A mistake of the calling code is a ``TypeError`` or ``ValueError``. What a model can have written is none: a
command that no system could start has the exit code of one that was found not to start, 126, and a path
that no file can have is the ``OSError`` that a file system answers it with.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.sandboxes.base import Command

LONGEST_ARGUMENT = (128 << 10) - 1
"""Bytes of one argument or variable (``NAME=value``) that Linux takes."""

LONGEST_COMMAND = 2_000_000
"""Bytes of all arguments and variables together: a little less than the 2 MiB that Linux takes, as every
sandbox has variables of its own. Each counts for 9 more, its end and a pointer to it."""

LARGEST_READ = 256 << 20
"""Bytes that one ``read_bytes`` returns at most; larger files are read in parts."""

_EACH = 9
NOT_STARTED = 126


def check_environment(env: Mapping[str, str] | None) -> Mapping[str, str]:
    """Variables of a command. ``TypeError`` or ``ValueError`` where one of them cannot exist."""
    if not env:
        return {}
    if not isinstance(env, Mapping):
        raise TypeError(f"the environment of a command is a mapping, not {_kind(env)}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            wrong = value if isinstance(name, str) else name
            raise TypeError(f"variables of the environment are text: {name!r} has {_kind(wrong)}")
        if not name or "=" in name:
            raise ValueError(f"{name!r} cannot be the name of a variable of the environment")
        if reason := _no_text(name) or _no_text(value):
            raise ValueError(f"the variable {name!r} has {reason}")
    return env


def check_timeout(timeout: float | None) -> float | None:
    """Seconds that a command may take. One that is over already is 0; infinitely many are None."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float):
        raise TypeError(f"a time-out is a number of seconds or None, not {_kind(timeout)}")
    if 0 <= timeout < math.inf:
        return timeout
    if math.isnan(timeout):
        raise ValueError("a time-out is a number of seconds or None, not NaN")
    return 0.0 if timeout < 0 else None


def check_input(data: bytes | None) -> bytes | None:
    """Standard input of a command."""
    return data if data is None or type(data) is bytes else check_data(data, "standard input")


def check_data(data: bytes, what: str = "the content of a file") -> bytes:
    """Bytes, of whatever class. ``TypeError`` for text and all else."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{what} is bytes, not {_kind(data)}")
    return bytes(data)


def check_output_limit(limit: int) -> int:
    """Bytes that are kept of each output stream."""
    if not isinstance(limit, int):
        raise TypeError(f"an output limit is a whole number of bytes, not {_kind(limit)}")
    if limit < 0:
        raise ValueError(f"an output limit cannot be negative: {limit}")
    return limit


def check_user(user: str | None) -> str | None:
    """Whom a command runs as. Nobody has an empty name."""
    if user is None:
        return None
    if not isinstance(user, str):
        raise TypeError(f"a user is a name or a number as text, not {_kind(user)}")
    if not user or _no_text(user):
        raise ValueError(f"{user!r} cannot be the name of a user")
    return user


def check_command(command: Command) -> Command:
    """Shell text as it is, a vector as well. ``TypeError``, or ``ValueError`` for an empty one."""
    if isinstance(command, str):
        return command
    if isinstance(command, bytes | bytearray | memoryview) or not isinstance(command, Sequence):
        raise TypeError(f"a command is text or a sequence of text, not {_kind(command)}")
    for word in command:
        if not isinstance(word, str):
            raise TypeError(f"the arguments of a command are text, not {_kind(word)}")
    if not command:
        raise ValueError("a command needs at least the name of its program")
    return command


def reason_against(command: Command, cwd: str | None, env: Mapping[str, str]) -> str:
    """Why no system can start this command; empty where nothing speaks against it."""
    if not env and not cwd and not isinstance(command, str) and _is_plain(command):
        return ""
    total = 0
    if isinstance(command, str):  # too long for an argument, it goes by a file
        if reason := _no_text(command):
            return f"the command has {reason}"
    else:
        for number, word in enumerate(command):
            if reason := _no_text(word):
                return f"argument {number} has {reason}"
            size = _size(word)
            if size > LONGEST_ARGUMENT:
                return f"argument {number} is {size} bytes long, and the system takes {LONGEST_ARGUMENT}"
            total += size + _EACH
    for name, value in env.items():
        size = _size(name) + 1 + _size(value)
        if size > LONGEST_ARGUMENT:
            return f"the variable {name} is {size} bytes long, and the system takes {LONGEST_ARGUMENT}"
        total += size + _EACH
    if total > LONGEST_COMMAND:
        return f"arguments and environment are {total} bytes, and the system takes {LONGEST_COMMAND} in all"
    if cwd and (reason := _no_text(cwd)):
        return f"the name of the working directory has {reason}"
    return ""


def check_directory(cwd: str | None) -> str | None:
    """Where a command begins; None, as an empty one, is where all do."""
    if cwd is not None and not isinstance(cwd, str):
        raise TypeError(f"a working directory is text, not {_kind(cwd)}")
    return cwd or None


def check_path(path: str) -> str:
    """A path of a file operation. ``TypeError``; ``OSError`` for one that no file can have."""
    if not isinstance(path, str):
        raise TypeError(f"a path in a sandbox is text, not {_kind(path)}")
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if "\0" in path:
        raise OSError(errno.EINVAL, "embedded null byte", path)
    if reason := _no_text(path):
        raise OSError(errno.EILSEQ, f"the path has {reason}", path)
    return path


def check_mode(mode: int | None) -> int | None:
    """Permissions of a file that is written."""
    if mode is not None and not isinstance(mode, int):
        raise TypeError(f"the mode of a file is a number, not {_kind(mode)}")
    if mode is not None and not 0 <= mode <= 0o7777:
        raise ValueError(f"the mode of a file is between 0 and 0o7777, not {mode:#o}")
    return mode


def check_part(offset: int, length: int | None) -> None:
    """Which part of a file is read."""
    for name, value in (("offset", offset), ("length", length)):
        if value is not None and not isinstance(value, int):
            raise TypeError(f"the {name} of a read is a whole number, not {_kind(value)}")
        if value is not None and value < 0:
            raise ValueError(f"the {name} of a read cannot be negative: {value}")


def most_of(length: int | None) -> int | None:
    """How many bytes may be there to read; None where the length of the read sees to that."""
    return LARGEST_READ if length is None or length > LARGEST_READ else None


def bound_of(length: int | None) -> int:
    """How many bytes are taken of whoever reads for us inside, who is not trusted to keep to them."""
    return LARGEST_READ if length is None else min(length, LARGEST_READ)


def too_large(path: str, most: int = LARGEST_READ) -> OSError:
    """The error of a read that would return more than ``most``."""
    reason = f"more than the {most} bytes that are read at once; read it in parts"
    return OSError(errno.EFBIG, reason, path)


def _is_plain(words: Sequence[str]) -> bool:
    """Whether nothing can speak against an argument vector, as of nearly all, at a tenth of the cost."""
    text = "\0".join(words)
    ends = len(words) - 1
    return text.isascii() and len(text) + _EACH * ends < LONGEST_ARGUMENT and text.count("\0") == ends


def _no_text(text: str) -> str:
    """What in it no argument, variable or path can have. Bytes that are no UTF-8 can be in all of them."""
    if "\0" in text:
        return "a NUL in it, which nothing can be given"
    if not text.isascii():
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            return f"a lone surrogate in it, U+{ord(text[error.start]):04X}, which is no character"
    return ""


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _kind(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__}"
