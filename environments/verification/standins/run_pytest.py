"""Runs our copy of pytest with the sandbox's Python, started with ``-I -S``.

Everything of ours is imported before the sandbox's packages become visible, and their ``.pth`` files,
``sitecustomize`` and pytest plug-ins are never run. That all tests passed is said on standard output, with
a word that only we know, and only by a process that came to its end.
"""

import os
import sys
from pathlib import Path
from typing import Any

INTERNAL_ERROR = 3
"""Exit code of a pytest that broke; it says nothing about what was tested."""

HERE = Path(os.environ.get("HERMES_BUNDLE", "."))


def package_directories() -> list[str]:
    """Where this Python's packages lie, found without asking its ``site``."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    below = (f"lib/{name}/site-packages", f"lib/{name}/dist-packages", "lib/python3/dist-packages")
    prefixes = dict.fromkeys((sys.prefix, sys.base_prefix, "/usr/local", "/usr"))
    found = [Path(prefix, directory) for prefix in prefixes for directory in below]
    return list(dict.fromkeys(str(path) for path in found if path.is_dir()))


class Failures:
    """Counts what failed, apart from pytest's own books, which the code under test can reach more easily."""

    def __init__(self) -> None:
        self.number = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called for the set-up, the call and the end of each test."""
        self.number += bool(report.failed)

    def pytest_collectreport(self, report: Any) -> None:
        """Called for each file of tests."""
        self.number += bool(report.failed)


def main() -> int:
    """Run pytest on the command line's arguments and return its exit code."""
    sys.path.insert(0, str(HERE / "lib"))
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    word = os.environ.pop("HERMES_WORD", "")
    import pytest

    options = ["-c", str(HERE / "empty.ini"), "--rootdir=/tests", "--confcutdir=/tests"]
    options += ["-p", "no:cacheprovider"]
    arguments = sys.argv[1:]
    if (HERE / "lib" / "pytest_json_ctrf").is_dir():
        options += ["-p", "pytest_json_ctrf.plugin"]
    else:
        arguments = without_report(arguments)
    sys.path += package_directories()
    failures = Failures()
    code = int(pytest.main([*options, *arguments], plugins=[failures]))
    if code == 0 and not failures.number:
        os.write(1, f"\nhermes-verifier: {word} all passed\n".encode())
    if code == INTERNAL_ERROR:
        sys.stderr.write("hermes-verifier: needs a pytest that works\n")
    return code


def without_report(arguments: list[str]) -> list[str]:
    """Without ``--ctrf FILE``, where its plug-in is not in the bundle."""
    kept = []
    words = iter(arguments)
    for word in words:
        if word == "--ctrf":
            next(words, None)
        elif not word.startswith("--ctrf="):
            kept.append(word)
    return kept


if __name__ == "__main__":
    sys.exit(main())
