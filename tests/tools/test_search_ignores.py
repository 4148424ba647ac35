"""Rules of ignore files, one by one; the whole is compared with ripgrep in ``test_search_ripgrep``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools.search_ignores import Rules

from .bench import Bench


@pytest.mark.parametrize(
    ("rules", "path", "expected"),
    [
        ("*.log", "a/b.log", True),
        ("*.log\n!keep.log", "keep.log", False),
        ("!keep.log\n*.log", "keep.log", True),
        ("/top", "top", True),
        ("/top", "a/top", None),
        ("a/b", "a/b", True),
        ("a/b", "x/a/b", None),
        ("build/", "build", None),
        ("build/", "a/build/", True),
        ("**/x", "x", True),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/c/d/b", True),
        ("a/**/b", "a/c/d/e", None),
        ("a/**", "a", None),
        ("a/**", "a/b/c", True),
        ("a**b", "axxb", True),
        ("*.py[co]", "m.pyc", True),
        ("[!a]b", "ab", None),
        ("[!a]b", "cb", True),
        ("[]]x", "]x", True),
        ("{a,b/c}*", "b/cd", True),
        ("a{b,c}.z", "ac.z", True),
        ("a\\*b", "a*b", True),
        ("a\\*b", "axb", None),
        ("\\#x", "#x", True),
        ("\\!x", "!x", True),
        ("# x", "# x", None),
        ("x  ", "x", True),
        ("x\\ ", "x ", True),
        ("x\r", "x", True),
        ("\xef\xbb\xbfx", "x", True),
        ("[z-a]\nx", "x", True),
        ("[a\n{b\nc}\n\\", "[a", None),
        ("/", "a", None),
        ("", "a", None),
        ("**", "a/b", True),
        ("?\n", "\xe9", True),
        ("*", "a\nb", True),
    ],
)
def test_what_a_rule_means(rules: str, path: str, expected: bool | None) -> None:
    found = Rules(rules).ignored(path.removesuffix("/").split("/"), path.endswith("/"))
    assert found is expected


@given(
    st.text(st.sampled_from("ab*?[]!{},/\\ #\n"), max_size=40),
    st.lists(st.text("ab", min_size=1), min_size=1),
)
def test_any_text_is_a_list_of_rules(text: str, path: list[str]) -> None:
    assert Rules(text).ignored(path, True) in (True, False, None)


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ("*a" * 100 + "b", ["a" * 255]),
        ("**/a/" * 200 + "b", ["a"] * 2_000),
        ("{a,b}" * 100, ["a" * 100]),
        ("*[a-z]?" * 60, ["a" * 255]),
    ],
)
def test_nobody_can_make_the_matching_last(rules: str, path: list[str]) -> None:
    started = time.process_time()
    Rules(rules).ignored(path, True)
    assert time.process_time() - started < 5


def test_rules_above_below_and_out_of_a_search(bench: Bench) -> None:
    files = {
        ".ignore": "*.txt\n!/src/b.txt\n",
        "src/a.txt": "word\n",
        "src/b.txt": "word\n",
        "src/c.py": "word\n",
        "src/new\nline/d.py": "word\n",
        "src/new\nline/e.txt": "word\n",
        "src/.gitignore": "c.py\n",
    }
    for name, text in files.items():
        (bench.work / name).parent.mkdir(parents=True, exist_ok=True)
        (bench.work / name).write_text(text)

    def found(**arguments: str) -> list[str]:
        result = bench("search_files", pattern="word", output_mode="files_only", **arguments)
        return [str(file) for file in result["files"]]

    # Outside of a repository nobody asks .gitignore.
    everywhere = ["src/b.txt", "src/c.py", "src/new\nline/d.py"]
    assert found() == found() == found(path="src") == everywhere
    (bench.work / ".git").mkdir()
    assert found() == found(path="src") == ["src/b.txt", "src/new\nline/d.py"]
    assert found(path="src/c.py") == ["src/c.py"]
    assert found(file_glob="*.txt") == ["src/a.txt", "src/b.txt", "src/new\nline/e.txt"]
    assert bench("search_files", pattern="*.py", target="files")["files"] == [
        "src/c.py",
        "src/new\nline/d.py",
    ]
    (match,) = bench("search_files", pattern="word", path="src/new\nline")["matches"]
    assert (match["path"], match["line"], match["content"]) == ("src/new\nline/d.py", 1, "word")
    (bench.work / ".ignore").unlink()
    (bench.work / "src" / ".gitignore").unlink()
    assert len(found()) == 5


def test_rules_that_appear_are_seen(bench: Bench) -> None:
    for name in ("a.py", "b.py"):
        (bench.work / name).write_text("word\n")
    assert bench("search_files", pattern="word")["total_count"] == 2
    (bench.work / ".ignore").write_text("b.py\n")
    assert bench("search_files", pattern="word")["total_count"] == 1
    Path(bench.work / ".ignore").unlink()
    assert bench("search_files", pattern="word")["total_count"] == 2
