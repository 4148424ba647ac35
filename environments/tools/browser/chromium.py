"""Finding Chromium, and starting it with as few rights as this machine allows."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534
"""User id of the browser where the framework is root: pages must not read what root may read."""

_END_PATIENCE = 20.0

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_CURE = (
    "needs Chromium: apt-get install chromium, or playwright install chromium, or name the program with "
    "--env.browser_path"
)
_KEPT = ("PATH", "LANG", "LC_ALL", "LANGUAGE", "TZ", "LD_LIBRARY_PATH", "FONTCONFIG_PATH", "FONTCONFIG_FILE")

# Takes: the program, its profile, the user; then the program's own arguments. Playwright has made an
# empty profile elsewhere, which nobody would remove if we were killed.
_BECOME = """
import os, sys
program, profile, user = sys.argv[1], sys.argv[2], int(sys.argv[3])
for argument in sys.argv[4:]:
    name, _, unused = argument.partition("=")
    if name == "--user-data-dir":
        try:
            os.rmdir(unused)
        except OSError:
            pass
if user:
    os.setgroups([]); os.setgid(user); os.setuid(user)
os.execv(program, [program, *sys.argv[4:], "--user-data-dir=" + profile])
"""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to start the browser. ``lacking`` says what it does without."""

    user: int
    sandbox: bool
    lacking: str | None


def find_program(path: str | None) -> str | None:
    """The browser's program; None where there is none."""
    if path is not None:
        return shutil.which(os.path.expanduser(path))  # noqa: PTH111 - which wants text
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            # Debian's is a shell script with the settings of desktop users around the program.
            bare = Path("/usr/lib") / name / name
            return str(bare) if os.access(bare, os.X_OK) else found
    own = sorted(Path.home().glob(".cache/ms-playwright/chromium-*/chrome-linux*/chrome"))
    return str(own[-1]) if own else None


def missing(path: str | None) -> str | None:
    """What to say where there is no browser; None where there is one."""
    if find_program(path) is not None:
        return None
    return f"--env.browser_path {path!r} is no program that can be run" if path is not None else _CURE


def ways() -> Iterator[Way]:
    """From the safest way down; which of them work is learnt by trying."""
    if os.geteuid() == 0:
        yield Way(NOBODY, True, None)
        yield Way(NOBODY, False, "its own sandbox")
        yield Way(0, False, "its own sandbox, as root")
    else:
        yield Way(0, True, None)
        yield Way(0, False, "its own sandbox")


def write_launcher(directory: Path, number: int, program: str, way: Way) -> Path:
    """A program that starts the browser this way, with a new profile in ``directory``."""
    profile = directory / f".profile-{number}"
    profile.mkdir(0o700)
    if way.user:
        os.chown(profile, way.user, way.user)
    words = [sys.executable, "-I", "-S", "-c", _BECOME, program, str(profile), str(way.user)]
    launcher = directory / f".launch-{number}"
    home = f"HOME={shlex.quote(str(profile))}; export HOME"
    launcher.write_text(f'#!/bin/sh\n{home}\nexec {shlex.join(words)} "$@"\n')
    launcher.chmod(0o700)
    return launcher


def end_processes(directory: Path) -> None:
    """Kill what still runs with a profile in ``directory``, and wait until it has gone. Blocking.

    A browser that was told to end may take longer than anybody waits, and would write into its profile
    while that is removed.
    """
    deadline = time.monotonic() + _END_PATIENCE
    while (found := _processes_of(directory)) and time.monotonic() < deadline:
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _processes_of(directory: Path) -> list[int]:
    """Those that have the directory in their arguments; our own cannot, its name was drawn by chance."""
    name = os.fsencode(directory)
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError):  # it has ended
                if name in (process / "cmdline").read_bytes():
                    found.append(int(process.name))
    return found


def variables() -> dict[str, str]:
    """The browser's environment: ours without what might be a secret."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}
