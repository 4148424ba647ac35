"""Groups of candidates out of result files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from environments.errors import ConfigError, StoreError
from environments.exports.candidates import Candidate, candidates_of
from environments.results.reading import ATTEMPTS_FILE
from environments.results.rows import Row, find_file, read_rows
from environments.results.store import read_tools, run_directory

JSON = dict[str, Any]


def read_groups(path: Path, schemas: list[JSON] | None) -> Iterator[list[Candidate]]:
    """The groups of a file of ``process``, a run directory, or samples of an evaluation, in their order.

    ``schemas`` stand for tool schemas where the run has none. Raises ``StoreError``.
    """
    file = find_file(path)
    tools = tools_beside(file)
    rows = read_rows(path)
    first = next(rows, None)
    if first is None:
        raise StoreError(f"{file} holds no rollouts")
    rows = itertools.chain([first], rows)
    if file.name != ATTEMPTS_FILE and "." in first.place:  # a line is a group
        found = _candidates(rows, tools, schemas, by_item=False)
        for _, group in itertools.groupby(found, key=lambda candidate: candidate.group):
            yield list(group)
        return
    groups: dict[str, list[Candidate]] = {}
    for candidate in _candidates(rows, tools, schemas, by_item=True):
        groups.setdefault(candidate.group, []).append(candidate)
    yield from groups.values()


def _candidates(
    rows: Iterable[Row], tools: Mapping[str, list[JSON]], schemas: list[JSON] | None, *, by_item: bool
) -> Iterator[Candidate]:
    for row in rows:
        for candidate in candidates_of(row, tools, by_item=by_item):
            yield replace(candidate, tools=schemas) if candidate.tools is None and schemas else candidate


def tools_beside(file: Path) -> dict[str, list[JSON]]:
    """Tool schemas of the run that a file belongs to, by hash."""
    for directory in (file.parent, run_directory(file)):
        if tools := read_tools(directory):
            return tools
    return {}


def read_schemas(path: Path) -> list[JSON]:
    """Tool schemas from a file: a JSON list of them. Raises ``ConfigError``."""
    try:
        value = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--tools {path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--tools {path}: no JSON: {error}") from error
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ConfigError(f"--tools {path}: a JSON list of tool schemas is needed")
    return value
