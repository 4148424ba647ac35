"""A page to look at results with a browser: one file, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from environments.errors import StoreError
from environments.results.conversation import pieces
from environments.results.durable import write_via_temporary
from environments.results.rows import Row, read_rows, rows_of
from environments.results.show import COLUMNS, RIGHT, Totals, cells, endings, facts
from environments.results.text import one_line

logger = logging.getLogger(__name__)

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin-bottom: 0; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 2rem; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; vertical-align: top; }
th { white-space: nowrap; }
.right { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.yes { color: #15803d; } .no { color: #dc2626; } .none { color: #a16207; }
details.rollout { border: 1px solid var(--line); border-radius: 6px; margin: .6rem 0; padding: 0 .8rem; }
details.rollout > summary { padding: .5rem 0; cursor: pointer; font-weight: 600; }
details.rollout[open] { padding-bottom: .8rem; }
dl { scroll-margin-top: 3rem; margin: 0; font-size: .85rem; display: grid;
  grid-template-columns: max-content 1fr; gap: 0 1rem; }
dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
.role { font-weight: 600; margin: 1rem 0 .2rem; border-top: 1px solid var(--line); padding-top: .5rem; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0;
  font: 13px/1.45 ui-monospace, monospace; }
pre.call, pre.result { background: var(--soft); border-radius: 4px; padding: .4rem .6rem;
  max-height: 30rem; overflow: auto; }
pre.reasoning { opacity: .7; font-style: italic; border-left: 3px solid var(--line); padding-left: .6rem; }
.title { font-size: .85rem; font-weight: 600; margin-top: .4rem; }
"""

MAX_CONVERSATIONS = 1_000
"""Conversations on one page; a browser does not open more with pleasure. The table has all rows."""

LONGEST_TEXT = 20_000
"""Characters of one message, call or result; the whole text is in the output."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Should anything of a hostile conversation ever get through, the browser still loads and runs nothing."""


def write_html(source: Iterable[Any] | Path, path: Path, *, title: str | None = None) -> Path:
    """Write the page of a result file or directory (a path), or of groups, samples or attempts.

    ``path`` is the output that it stands beside: ``out.html`` for ``out.jsonl`` or ``out.run``, and
    ``out.txt.html`` for ``out.txt``. Returns where the page is. Written a row at a time, so a large
    file does not fill the memory; with a path the file is read twice. Raises ``StoreError``.
    """
    own = path.suffix in (".jsonl", ".run")
    target = path.with_suffix(".html") if own else path.with_name(f"{path.name}.html")
    kept = None if isinstance(source, Path) else list(source)

    def rows() -> Iterator[Row]:
        return read_rows(source) if isinstance(source, Path) else rows_of(kept or [])

    def write(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", errors="replace") as file:
            for part in _page(rows(), rows(), title or path.name):
                file.write(part)

    write_via_temporary(target, write)
    return target


def write_page_for_groups(path: Path, *, title: str | None = None) -> Path | None:
    """The page of the file of groups at ``path``, written beside it.

    Results are complete without it: where it cannot be written, that is a warning and None.
    """
    try:
        return write_html(path, path, title=title)
    except StoreError as error:
        logger.warning("no page: %s", error)
        return None


def _page(for_table: Iterable[Row], for_conversations: Iterable[Row], title: str) -> Iterator[str]:
    name = escape(one_line(title, 200))
    yield (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body><h1>{name}</h1>\n<table><thead><tr>"
    )
    for column in COLUMNS:
        yield f"<th{_right(column)}>{escape(column)}</th>"
    yield "</tr></thead><tbody>\n"
    totals = Totals()
    for row in for_table:
        totals.add(row)
        yield _table_row(row)
    yield f"</tbody></table>\n<p>{escape(str(totals))}</p>\n"
    for row in islice(for_conversations, MAX_CONVERSATIONS):
        yield from _rollout(row)
    if totals.rows > MAX_CONVERSATIONS:
        yield f"<p>The other {totals.rows - MAX_CONVERSATIONS:,} conversations: hermes-env show FILE N</p>\n"
    yield "</body></html>\n"


def _table_row(row: Row) -> str:
    parts = []
    for column, cell in zip(COLUMNS, cells(row), strict=True):
        text = escape(cell)
        if column == "#":
            text = f'<a href="#r{row.number}">{text}</a>'
        if column == "passed":
            text = f'<span class="{_passed_class(row)}">{text}</span>'
        parts.append(f"<td{_right(column)}>{text}</td>")
    return f"<tr>{''.join(parts)}</tr>\n"


def _rollout(row: Row) -> Iterator[str]:
    head = f"{row.place} &middot; {escape(one_line(row.item, 100)) or 'no item'}"
    reward = cells(row)[COLUMNS.index("reward")]
    yield (
        f'<details class="rollout"><summary>{head} &middot; '
        f'<span class="{_passed_class(row)}">reward {escape(reward)}</span></summary>\n'
        f'<dl id="r{row.number}">'
    )
    for name, value in facts(row):
        yield f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>"
    yield "</dl>\n"
    for message in row.messages:
        yield f'<div class="role">{escape(one_line(str(message.get("role") or "?"), 20))}</div>\n'
        for piece in pieces(message, LONGEST_TEXT):
            if piece.title:
                mark = {"call": "&rarr; ", "result": "&larr; "}.get(piece.kind, "")
                yield f'<div class="title">{mark}{escape(piece.title)}</div>'
            yield f'<pre class="{piece.kind}">{escape(piece.text)}</pre>\n'
    for name, text in endings(row, LONGEST_TEXT):
        yield f'<div class="role">{escape(name)}</div><pre>{escape(text)}</pre>\n'
    yield "</details>\n"


def _right(column: str) -> str:
    return ' class="right"' if column in RIGHT else ""


def _passed_class(row: Row) -> str:
    return "none" if row.passed is None else "yes" if row.passed else "no"
