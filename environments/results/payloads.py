"""Large values beside the file: ``{"$payload": sha256, "size": n}`` stands for a text in ``payloads/``.

The same image in forty messages is stored once, and a line stays short enough to read. A key of
somebody's own data that looks like ours gets one more ``$`` on the way in and loses it on the way out.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from pathlib import Path
from typing import Any

import orjson

from environments.results.durable import make_directory, store_errors

logger = logging.getLogger(__name__)

LARGE = 100_000
"""Bytes; a longer text goes beside the file."""

SMALL_IMAGE = 1_000
"""Bytes; a base64 image that is shorter stays in the line."""

_KEY = re.compile(r"\$+payload")
_HASH = re.compile(r"[0-9a-f]{64}")


class Payloads:
    """The directory of large values of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def extract(self, line: bytes) -> tuple[bytes, list[Path]]:
        """The line with references for large values, and the files that were written for it."""
        if len(line) <= LARGE and b";base64," not in line and b'$payload"' not in line:
            return line, []
        written: list[Path] = []
        shortened = self._extract(orjson.loads(line), written)
        return orjson.dumps(shortened), written

    def restore(self, line: bytes) -> bytes:
        """The line with the large values back in their places."""
        if b'$payload"' not in line:
            return line
        return orjson.dumps(self._restore(orjson.loads(line)))

    def _extract(self, value: Any, written: list[Path]) -> Any:
        if isinstance(value, str):
            return self._extract_text(value, written)
        if isinstance(value, list):
            return [self._extract(item, written) for item in value]
        if isinstance(value, dict):
            return {
                f"${key}" if _KEY.fullmatch(key) else key: self._extract(item, written)
                for key, item in value.items()
            }
        return value

    def _extract_text(self, text: str, written: list[Path]) -> Any:
        image = text.startswith("data:") and ";base64," in text[:200]
        if len(text) <= (SMALL_IMAGE if image else LARGE // 4):
            return text
        data = text.encode()
        if not image and len(data) <= LARGE:
            return text
        digest = hashlib.sha256(data).hexdigest()
        path = self.directory / digest
        if not path.exists():
            with store_errors(f"cannot write {path}"):
                make_directory(self.directory)
                temporary = path.with_name(f"{digest}.{threading.get_ident()}.tmp")
                temporary.write_bytes(data)
                temporary.replace(path)
            written.append(path)
        return {"$payload": digest, "size": len(data)}

    def _restore(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._restore(item) for item in value]
        if not isinstance(value, dict):
            return value
        reference = value.get("$payload")
        if isinstance(reference, str) and _HASH.fullmatch(reference):
            return self._read(reference, value.get("size"))
        return {
            key[1:] if key.startswith("$$") and _KEY.fullmatch(key) else key: self._restore(item)
            for key, item in value.items()
        }

    def _read(self, digest: str, size: Any) -> str:
        path = self.directory / digest
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            logger.warning("%s is missing", path)
            return f"[{size} bytes, missing: payloads/{digest}]"
        if hashlib.sha256(data).hexdigest() != digest:
            logger.warning("%s is damaged", path)
        return data.decode("utf-8", "replace")
