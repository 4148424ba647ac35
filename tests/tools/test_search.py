from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.tools.base import ToolInputError
from environments.tools.search_globs import glob_to_extended
from environments.tools.search_patterns import to_extended

from .bench import Bench


def busybox_path(directory: Path) -> str:
    """A PATH on which every tool but bash is busybox."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("busybox is not installed")
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    directory.mkdir()
    for name in applets:
        (directory / name).symlink_to(busybox)
    (directory / "bash").unlink(missing_ok=True)
    (directory / "bash").symlink_to(shutil.which("bash") or "/bin/bash")
    return str(directory)


@pytest.fixture(params=["gnu", "busybox"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    path = busybox_path(tmp_path / "bin") if request.param == "busybox" else None
    bench = Bench(tmp_path / "sandbox", path)
    files = {
        "main.py": "import os\n\ndef main():\n    print('Hello {name}')  # TODO 42\n",
        "lib/util.py": "def helper(x):\n    return x + 10\n\n\ndef other():\n    return helper(1)\n",
        "lib/notes.txt": "Grüße and naïve café\r\nTODO\r\n",
        "lib/deep/a b.c": "int main(void) { return 0; }\n",
        "-dash.txt": "TODO dash\n",
        "ignored.log": "TODO in a file that git ignores\n",
        ".gitignore": "*.log\n",
        ".hidden/x.py": "TODO hidden\n",
        ".git/config": "TODO git\n",
        "lib/.env": "TODO env\n",
    }
    for name, text in files.items():
        (bench.work / name).parent.mkdir(parents=True, exist_ok=True)
        (bench.work / name).write_bytes(text.encode())
    (bench.work / "latin.txt").write_bytes(b"TODO caf\xe9\n")
    (bench.work / "blob.bin").write_bytes(b"TODO\0\1\2 binary\n")
    (bench.work / "empty").touch()
    return bench


def test_lines_that_match_sorted_by_path(tree: Bench) -> None:
    result = tree("search_files", pattern="TODO")
    assert [(match["path"], match["line"], match["content"]) for match in result["matches"]] == [
        ("-dash.txt", 1, "TODO dash"),
        ("latin.txt", 1, "TODO caf\ufffd"),
        ("lib/notes.txt", 2, "TODO"),
        ("main.py", 4, "    print('Hello {name}')  # TODO 42"),
    ]
    assert (result["total_count"], result["truncated"]) == (4, False)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (r"def \w+\(", 3),
        (r"\bmain\b", 2),
        (r"(?i)hello", 1),
        (r"return \d+", 1),
        (r"^\s*return", 2),
        (r"(?:int|def) (main|helper)", 3),
        (r"Hello {name}", 1),
        (r"x \+ 10", 1),
        (r"[^\s]café$|TODO$", 1),
        (r"na.ve", 1),
        (r"na..ve", 0),
        (r"^Gr..e", 1),
        (r"[ïü]v|Gr[^x]ße", 1),
        (r"caf\S$", 2),
        (r"f\S\S+$", 0),
        (r".*?TODO.*?", 4),
        (r"\S+\.\S+", 0),
        (r"^$", 3),
        (r"--", 0),
        (r"-e", 0),
        (r"o{2}", 0),
        (r"l{2}o", 1),
        (r"(?P<word>l)+o", 1),
        (r"[a\]\-x]\)", 1),
        (r"void\) \{ return 0; \}", 1),
    ],
)
def test_regular_expressions_mean_the_same_everywhere(tree: Bench, pattern: str, count: int) -> None:
    result = tree("search_files", pattern=pattern)
    assert result["total_count"] == count, result
    assert len(result["matches"]) == count


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "is not closed"),
        ("a)", "closes nothing"),
        ("[a", "is not closed"),
        ("*a", "nothing before"),
        ("a**", "cannot be repeated"),
        ("a{2,1}", "from the lower to the higher"),
        ("(?=a)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", r"\1 is not supported"),
        (r"\pL", "is not supported"),
        ("a\\", "single backslash"),
        ("a\nb", "line break"),
        ("", "empty"),
        ("[z-a]", "no range"),
        ("a\0b", "NUL character"),
        ("x" * 200_000, "too long"),
    ],
)
def test_a_pattern_that_cannot_be_searched_for_says_why(bench: Bench, pattern: str, message: str) -> None:
    outcome = bench.outcome("search_files", {"pattern": pattern})
    assert outcome.error == "bad_arguments"
    assert message in str(outcome.result)


def test_files_by_name(tree: Bench) -> None:
    def names(pattern: str, **more: object) -> list[str]:
        result = tree("search_files", pattern=pattern, target="files", **more)
        assert result["total_count"] == len(result["files"])
        return list(result["files"])

    assert names("*.py") == ["lib/util.py", "main.py"]
    assert names("lib/*") == ["lib/notes.txt", "lib/util.py"]
    assert names("lib/**/*.c") == ["lib/deep/a b.c"]
    assert names("**/*.{py,txt}") == ["-dash.txt", "latin.txt", "lib/notes.txt", "lib/util.py", "main.py"]
    assert names("[lm]a*") == ["latin.txt", "main.py"]
    assert names(".env") == ["lib/.env"]
    assert names("*", path="lib/deep") == ["lib/deep/a b.c"]
    assert names("*.py", path=str(tree.work)) == [str(tree.work / "lib/util.py"), str(tree.work / "main.py")]
    assert names("*", path=".hidden") == [".hidden/x.py"]


def test_places_that_cannot_be_searched_say_so(bench: Bench) -> None:
    os.mkfifo(bench.work / "pipe")
    closed, hidden = bench.work / "closed", bench.work / "hidden"
    closed.mkdir(0)
    hidden.write_text("x")
    hidden.chmod(0)
    places = [("pipe", "not a regular file"), ("/dev/zero", "not a regular file")]
    if os.geteuid():  # root may read them
        places += [("closed", "Permission denied"), ("hidden", "Permission denied")]
    for path, message in places:
        for target in ("content", "files"):
            outcome = bench.outcome("search_files", {"pattern": "x", "path": path, "target": target})
            assert message in outcome.result["error"], (path, outcome.result)


@pytest.mark.parametrize(("glob", "message"), [("!*.py", "leaves files out"), ("[a", "not closed")])
def test_globs_that_mean_something_else_elsewhere_say_so(bench: Bench, glob: str, message: str) -> None:
    for arguments in ({"pattern": "x", "file_glob": glob}, {"pattern": glob, "target": "files"}):
        assert message in bench.outcome("search_files", arguments).result["error"]


def test_globs_paths_and_single_files(tree: Bench) -> None:
    def count(**arguments: object) -> int:
        return int(tree("search_files", pattern="TODO", **arguments)["total_count"])

    assert count(file_glob="*.py") == 1
    assert count(file_glob="*.{py,log}") == 2
    assert count(file_glob="lib/**") == 1
    assert count(path="lib") == 1
    assert count(path=".hidden") == 1
    assert count(file_glob=".*") == 1
    single = tree("search_files", pattern="TODO", path="lib/notes.txt")
    assert single["matches"] == [{"path": "lib/notes.txt", "line": 2, "content": "TODO"}]
    assert "does not exist; similar: " in tree("search_files", pattern="x", path="libb")["error"]


def test_output_modes(tree: Bench) -> None:
    files = tree("search_files", pattern="return", output_mode="files_only")
    assert files == {"total_count": 2, "files": ["lib/deep/a b.c", "lib/util.py"], "truncated": False}
    counts = tree("search_files", pattern="return", output_mode="count")
    assert counts == {"total_count": 3, "counts": {"lib/deep/a b.c": 1, "lib/util.py": 2}, "truncated": False}


def test_context_lines(tree: Bench) -> None:
    result = tree("search_files", pattern="return", path="lib/util.py", context=2)
    assert result["matches"] == [
        {
            "path": "lib/util.py",
            "line": 2,
            "content": "    return x + 10",
            "before": ["def helper(x):"],
            "after": ["", ""],
        },
        {
            "path": "lib/util.py",
            "line": 6,
            "content": "    return helper(1)",
            "before": ["", "def other():"],
            "after": [],
        },
    ]


def test_pages_join_to_the_whole(tree: Bench) -> None:
    (tree.work / "many.txt").write_text("".join(f"TODO {n}\n" for n in range(37)))
    whole = tree("search_files", pattern="TODO", limit=1_000)["matches"]
    pages, offset = [], 0
    while True:
        page = tree("search_files", pattern="TODO", limit=9, offset=offset)
        pages += page["matches"]
        offset += len(page["matches"])
        assert page["total_count"] == len(whole)
        if not page["truncated"]:
            break
    assert pages == whole


def test_limits_are_checked_and_long_lines_cut(bench: Bench) -> None:
    for arguments in ({"limit": 0}, {"limit": 1_001}, {"offset": -1}, {"context": 21}):
        assert bench.outcome("search_files", {"pattern": "x", **arguments}).error == "bad_arguments"
    (bench.work / "wide").write_text("x" * 100_000 + "\n")
    (match,) = bench("search_files", pattern="x")["matches"]
    assert len(match["content"]) < 600


def test_a_tool_for_searching_in_the_image_changes_nothing(bench: Bench, tmp_path: Path) -> None:
    (bench.work / "f").write_text("word\n")
    before = bench("search_files", pattern="word")
    fake = tmp_path / "bin" / "rg"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    bench.sandbox._path = f"{fake.parent}:{bench.sandbox._environment(None)['PATH']}"
    assert bench("search_files", pattern="word") == before
    assert before["total_count"] == 1


C_LOCALE = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
CHARACTERS = ["é", "a", "b", ".", "-", "]", "{", "}", r"\.", r"\[", "^", "$"]
CLASSES = ["[éa]", "[ab]", "[^a]", "[a-c]", "[]a]", r"\d", r"\w", r"\s", r"\S", r"[\d-]", r"[^\w]"]
PIECES = [*CHARACTERS, *CLASSES, "(?:ab|c)", "(a|)"]
pieces = st.tuples(st.sampled_from(PIECES), st.sampled_from(["", "", "*", "+", "?", "{2}", "*?", "{1,2}"]))


@settings(deadline=None, max_examples=150)
@given(
    st.lists(pieces, min_size=1, max_size=4),
    st.lists(st.text(alphabet="abc1 .-]{[_éü€", max_size=6), min_size=1, max_size=8),
)
def test_grep_finds_what_python_finds(parts: list[tuple[str, str]], lines: list[str]) -> None:
    pattern = "".join(piece + (times if piece not in "^$" else "") for piece, times in parts)
    try:
        expression, _ = to_extended(pattern)
    except ToolInputError:
        return
    expected = [line for line in lines if re.search(pattern, line, re.ASCII)]
    for program in (["grep"], ["busybox", "grep"]):
        if shutil.which(program[0]) is None:
            continue
        result = subprocess.run(
            [*program, "-E", "-e", expression.encode("utf-8", "surrogateescape")],
            input="\n".join(lines) + "\n", capture_output=True, text=True, env=C_LOCALE,
        )  # fmt: skip
        assert result.returncode < 2, (pattern, expression, result.stderr)
        assert result.stdout.splitlines() == expected, (program, pattern, expression)


@settings(deadline=None)
@given(
    st.text(alphabet="ab*?[]{},/.!\\", min_size=1, max_size=10),
    st.text(alphabet=r"ab()[]{}*+?^$\|.dws-<:!=", max_size=12),
)
def test_any_pattern_is_one_for_grep_or_an_error(glob: str, pattern: str) -> None:
    for translate, given_text in ((glob_to_extended, glob), (to_extended, pattern)):
        try:
            expression = translate(given_text)
        except ToolInputError as error:
            assert str(error)
            continue
        text = expression if isinstance(expression, str) else expression[0]
        argv = ["grep", "-E", "-e", text.encode("utf-8", "surrogateescape")]
        result = subprocess.run(argv, input=b"x\n", capture_output=True, env=C_LOCALE)
        assert result.returncode < 2, (given_text, text, result.stderr)
