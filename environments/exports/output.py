"""The file of rows: each row once, also over several runs that add to it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import orjson

from environments.errors import ConfigError
from environments.results.durable import DurableFile, encode, read_lines, store_errors

JSON = dict[str, Any]

_CALL_ID = re.compile(r'"tool_call_id":"[^"]*",?')
_CONTENT = ("messages", "conversations", "prompt", "chosen", "rejected", "tools")


class Output:
    """A context manager. ``mode`` is ``new`` (the file must not exist), ``append`` or ``overwrite``.

    ``columns`` are those that every row has. Raises ``ConfigError`` and ``StoreError``.
    """

    def __init__(self, path: Path, mode: str, columns: Sequence[str]) -> None:
        if path.is_dir():
            raise ConfigError(f"the output {path} is a directory; name a file such as {path / 'out.jsonl'}")
        if mode == "new" and path.exists():
            raise ConfigError(f"{path} exists; add to it with --append, or replace it with --overwrite")
        self.path = path
        self.rows = 0
        """Rows written."""
        self.known = 0
        """Rows that were there before."""
        self.duplicates = 0
        self._columns = set(columns)
        self._seen: set[bytes] = set()
        self.kept = mode == "overwrite" and path.exists()
        """Whether an earlier file is still there: it goes when there is a row to put in its place, so that a
        mistake in the command does not cost it."""
        self._file: DurableFile | None = None
        if self.kept:
            return
        if path.exists():
            self._read()
        self._file = DurableFile(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if not self.rows and not self.known and not self.kept:
            self.path.unlink(missing_ok=True)

    def _read(self) -> None:
        for number, line in read_lines(self.path):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue  # a half-written last line, mended at opening
            if not isinstance(row, dict) or not self._columns <= set(row):
                raise ConfigError(
                    f"{self.path}, line {number} is no row of this kind: it lacks "
                    f"{', '.join(sorted(self._columns - set(row)))}; name another output"
                )
            self._seen.add(_digest(row))
            self.known += 1

    def write(self, row: JSON) -> bool:
        """Write a row; False where the same conversation is there already."""
        digest = _digest(row)
        if digest in self._seen:
            self.duplicates += 1
            return False
        if self._file is None:
            with store_errors(f"cannot replace {self.path}"):
                self.path.unlink(missing_ok=True)
            self._file, self.kept = DurableFile(self.path), False
        self._file.append(encode(row))
        self._seen.add(digest)
        self.rows += 1
        return True


def _digest(row: JSON) -> bytes:
    content = {name: _without_ids(row[name]) for name in _CONTENT if name in row}
    return hashlib.sha256(encode(content)).digest()


def _without_ids(column: Any) -> Any:
    """A column without identifiers of calls: they differ between conversations that say the same."""
    if not isinstance(column, list):
        return column
    messages = []
    for message in column:
        if not isinstance(message, dict):
            messages.append(message)
            continue
        given = message.get("tool_calls")
        calls = [call.get("function") for call in given or [] if isinstance(call, dict)]
        value = message.get("value")
        if message.get("from") == "tool" and isinstance(value, str):
            value = _CALL_ID.sub("", value)
        kept = {k: v for k, v in message.items() if k not in ("tool_call_id", "tool_calls", "value")}
        messages.append({**kept, "calls": calls, "value": value})
    return messages
