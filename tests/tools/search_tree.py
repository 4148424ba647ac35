"""A tree of files such as a large project has, the same for every run, with all that searches stumble on."""

from __future__ import annotations

import random
from pathlib import Path

WORDS = [
    "alpha",
    "beta",
    "gamma",
    "TODO",
    "needle",
    "return",
    "import",
    "naïve",
    "Größe",
    "日本",
    "x1",
    "foo_bar",
]
SUFFIXES = [".py", ".js", ".md", ".txt", ".log", ""]


RULES = [
    "*.md",
    "!*.md",
    "/main*",
    "test_1*",
    "src*/",
    "!src3*",
    "pkg*/**/a*",
    "**/Lib*/*.py",
    "日本*",
    "Gr??e*",
    "Gr????e*",
    "[!m]*.js",
    "[a-m]*1.txt",
    "{a,main}9*.{py,js}",
    "**",
    "*",
    "!*/",
    "with\\ space*",
    "a b*  ",
    "a b1*\\ ",
    "# *.py",
    "\\#x",
    "/",
    "[z-a]",
    "a**1",
    "",
    "dash-ed*/a*",
]


def make_tree(root: Path, count: int, seed: int = 1) -> None:
    """About ``count`` small files in nested directories, and the odd ones of ``_odd_files``.

    Some directories have ignore files, some are repositories of their own.
    """
    generator = random.Random(seed)
    directories = [root]
    for number in range(max(1, count // 40)):
        parent = generator.choice([*directories[-30:], root])
        name = generator.choice(
            ["pkg", "src", "Lib", "ünï", "with space", "dash-ed", "pkg.d", ".cache", "x.y"]
        )
        directory = parent / f"{name}{number}"
        directory.mkdir()
        directories.append(directory)
        _ignore_files(directory, generator)
    for number in range(count):
        directory = generator.choice(directories)
        name = generator.choice(["a", "main", "test_", "Grüße", ".env", "日本", "a b"])
        path = directory / f"{name}{number}{generator.choice(SUFFIXES)}"
        path.write_bytes(_content(generator))
    _odd_files(root)


def _ignore_files(directory: Path, generator: random.Random) -> None:
    if generator.random() < 0.05:
        (directory / ".git" / "info").mkdir(parents=True)
        (directory / ".git" / "info" / "exclude").write_text("main5*\n")
    for name in (".gitignore", ".ignore", ".rgignore"):
        if generator.random() < 0.06:
            end = generator.choice(["\n", "\n", "\r\n"])
            text = end.join(generator.choice(RULES) for _ in range(generator.randrange(1, 4)))
            (directory / name).write_bytes(text.encode() + generator.choice([b"", b"\n"]))


def _content(generator: random.Random) -> bytes:
    end = "\r\n" if generator.random() < 0.1 else "\n"
    lines = [_line(generator) for _ in range(generator.randrange(12))]
    text = end.join(lines)
    return (text + end if generator.random() < 0.8 else text).encode()


def _line(generator: random.Random) -> str:
    indentation = generator.choice(["", "", "    ", "\t"])
    return indentation + " ".join(generator.choice(WORDS) for _ in range(generator.randrange(6)))


def _odd_files(root: Path) -> None:
    odd = root / "odd"
    odd.mkdir()
    (root / ".gitignore").write_text("*.log\n/ignored\n!odd/kept.log\n")
    (root / ".git" / "info").mkdir(parents=True)
    (root / ".git" / "config").write_text("needle in git\n")
    (root / ".git" / "info" / "exclude").write_text("excluded\n")
    for name in ("ignored/needle.txt", "ignored/deep/needle.log", "odd/kept.log", "odd/excluded"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("needle\n")
    (odd / "empty").touch()
    (odd / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rneedle\n\0")
    (odd / "binary").write_bytes(b"needle\0needle\nneedle\n")
    (odd / "latin1.txt").write_bytes(b"needle caf\xe9\nna\xefve\n")
    (odd / "bom.txt").write_bytes(b"\xef\xbb\xbfneedle first\nneedle second\n")
    (odd / "long.txt").write_text("x" * 300_000 + " needle " + "y" * 300_000 + "\nneedle\n")
    (odd / "minified.js").write_text("needle;" * 20_000)
    (odd / "big.txt").write_text(
        "".join(f"line {n} {'needle' if n % 1000 == 0 else 'hay'}\n" for n in range(300_000))
    )
    (odd / "returns.txt").write_bytes(b"needle\rneedle\r\nTODO \r\n\r\n")
    (odd / "-e").write_text("needle in a file called -e\n")
    (odd / "co:lon:3").write_text("needle\n\nneedle\n")
    (odd / "quo'te \"$HOME`x`\\n*?[a].txt").write_text("needle\n")
    _names_with_line_breaks(root / "broken")
    (odd / "link-to-file").symlink_to("bom.txt")
    (odd / "link-to-directory").symlink_to("..")
    (odd / "link-to-nothing").symlink_to("nowhere")


def _names_with_line_breaks(directory: Path) -> None:
    """Only with rules that are plain names: ripgrep 13 does not see line breaks where it has wildcards."""
    for name in (
        "\n",
        "new\nline/a.py",
        "new\nline/\n/b:1:needle",
        "new\nline/deep/c\n",
        "a\nb.txt",
        "x\n\ny",
    ):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("needle alpha beta gamma\nTODO needle\n")
    (directory / "new\nline" / ".gitignore").write_text("left_out\n")
    (directory / "new\nline" / ".ignore").write_text("deeper\n")
    (directory / "new\nline" / "left_out").write_text("needle\n")
    (directory / "new\nline" / "deep" / "deeper").write_text("needle\n")
