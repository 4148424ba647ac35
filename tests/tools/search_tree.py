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


def make_tree(root: Path, count: int, seed: int = 1) -> None:
    """About ``count`` small files in nested directories, and the odd ones of ``_odd_files``."""
    generator = random.Random(seed)
    directories = [root]
    for number in range(max(1, count // 40)):
        parent = generator.choice([*directories[-30:], root])
        name = generator.choice(["pkg", "src", "Lib", "ünï", "with space", "dash-ed", "pkg.d", ".cache"])
        directory = parent / f"{name}{number}"
        directory.mkdir()
        directories.append(directory)
    for number in range(count):
        directory = generator.choice(directories)
        name = generator.choice(["a", "main", "test_", "Grüße", ".env", "日本", "a b"])
        path = directory / f"{name}{number}{generator.choice(SUFFIXES)}"
        path.write_bytes(_content(generator))
    _odd_files(root)


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
    (root / ".gitignore").write_text("*.log\n/odd\n")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("needle in git\n")
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
    (odd / "link-to-file").symlink_to("bom.txt")
    (odd / "link-to-directory").symlink_to("..")
    (odd / "link-to-nothing").symlink_to("nowhere")
