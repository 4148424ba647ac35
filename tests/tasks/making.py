"""Tasks made for tests."""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
from pathlib import Path

TEST_SCRIPT = "#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n"


def make_task(
    directory: Path,
    settings: str = '[environment]\nnetwork_mode = "no-network"\n',
    *,
    test: str = TEST_SCRIPT,
    solve: str | None = "#!/bin/bash\ntrue\n",
    dockerfile: str | None = "FROM debian:bookworm-slim\n",
) -> Path:
    """A whole task directory."""
    for name in ("tests", "environment", "solution"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "task.toml").write_text(settings)
    (directory / "instruction.md").write_text("Do it.\n")
    (directory / "tests" / "test.sh").write_text(test)
    if solve is not None:
        (directory / "solution" / "solve.sh").write_text(solve)
    if dockerfile is not None:
        (directory / "environment" / "Dockerfile").write_text(dockerfile)
    return directory


def archive(files: dict[str, str | tarfile.TarInfo]) -> str:
    """A packed archive as base64 text, as the Hub's tables hold it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                tar.addfile(content)
            else:
                entry = tarfile.TarInfo(name)
                entry.size = len(content.encode())
                tar.addfile(entry, io.BytesIO(content.encode()))
    return base64.b64encode(gzip.compress(buffer.getvalue(), mtime=0)).decode()
