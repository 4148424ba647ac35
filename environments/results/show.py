"""``hermes-env show``: look at results on a terminal."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.cli_output import output_failed, tell
from environments.errors import StoreError
from environments.globs import matches
from environments.results.conversation import pieces
from environments.results.durable import encode
from environments.results.rows import Row, read_rows
from environments.results.text import count, duration, harmless, one_line, score, shorten

if TYPE_CHECKING:
    from rich.console import Console

SHORT = 2_000
"""Characters of a long text that are shown unless all are asked for."""

WIDTH_WITHOUT_TERMINAL = 160
"""Columns where the output is a file or a pipe."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0, 1 where nothing matches, 2 for a wrong argument."""
    options = _parser().parse_args(argv)
    try:
        code = _show(options)
        sys.stdout.flush()
    except OSError as error:  # the reader (head, less) has seen enough, or the disk is full
        return output_failed(error)
    except StoreError as error:
        tell(f"hermes-env show: {harmless(str(error))}\n")
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hermes-env show",
        description="Show a run as a table, or one of its conversations.",
        epilog="FILE is a JSONL file of process, a run directory (out.run), or a directory of evaluate.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="file or directory with results")
    parser.add_argument(
        "row", nargs="?", metavar="N", help="row to show in full, as numbered in the table: 7, or 3.2"
    )
    parser.add_argument("--full", action="store_true", help="show long texts whole")
    parser.add_argument("--json", action="store_true", help="print the raw records, one per line")
    parser.add_argument("--failed", action="store_true", help="only what did not pass or has no score")
    parser.add_argument("--item", metavar="GLOB", help="only items whose id matches")
    return parser


def _show(options: argparse.Namespace) -> int:
    rows = _selected(read_rows(options.file), options)
    if options.json:
        return _print_json(rows)
    console = _console()
    if options.row is None:
        return _print_table(console, rows, options)
    row = next(rows, None)
    if row is None:
        raise StoreError(f"{options.file} has no row {options.row}; without N you see them all")
    _print_row(console, row, options.full)
    return 0


def _selected(rows: Iterable[Row], options: argparse.Namespace) -> Iterator[Row]:
    for row in rows:
        if options.row is not None and options.row not in (row.place, str(row.number)):
            continue
        if options.failed and row.passed:
            continue
        if options.item is not None and not matches(row.item, options.item):
            continue
        yield row


def _print_json(rows: Iterable[Row]) -> int:
    found = False
    for row in rows:
        found = True
        sys.stdout.write(encode(row.raw).decode() + "\n")
    return 0 if found else 1


def _console() -> Console:
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_WITHOUT_TERMINAL
    return PipeConsole(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


COLUMNS = ("#", "item", "attempt", "reward", "passed", "ending", "outcome", "turns", "tokens", "time")
NARROW = 100
"""Columns of a terminal below which the table leaves room for the items' names."""
LEFT_OUT_WHERE_NARROW = frozenset({"attempt", "turns"})
RIGHT = frozenset({"#", "attempt", "reward", "turns", "tokens", "time"})


def cells(row: Row) -> list[str]:
    """The texts of a row's cells, in the order of ``COLUMNS``; harmless."""
    return [
        row.place,
        one_line(row.item, 60) or "-",
        "-" if row.attempt is None else str(row.attempt),
        score(row.reward),
        "-" if row.passed is None else "yes" if row.passed else "no",
        one_line(row.ending) or "-",
        one_line(row.outcome) or "-",
        "-" if row.turns is None else str(row.turns),
        "-" if row.tokens is None else count(row.tokens),
        duration(row.seconds),
    ]


def _print_table(console: Console, rows: Iterable[Row], options: argparse.Namespace) -> int:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    narrow = console.width < NARROW
    shown = [name for name in COLUMNS if not (narrow and name in LEFT_OUT_WHERE_NARROW)]
    for name in shown:
        table.add_column(
            name, justify="right" if name in RIGHT else "left", no_wrap=name != "item", overflow="fold"
        )
    totals = Totals()
    for row in rows:
        totals.add(row)
        texts = [Text(cell) for cell in cells(row)]
        texts[COLUMNS.index("passed")].stylize({True: "green", False: "red", None: "yellow"}[row.passed])
        table.add_row(*(text for name, text in zip(COLUMNS, texts, strict=True) if name in shown))
    if not totals.rows:
        filtered = " that match" if options.failed or options.item else ""
        tell(f"{options.file} has no rollouts{filtered}\n")
        return 1
    console.print(table)
    console.print(str(totals))
    return 0


class Totals:
    """What stands below the table."""

    def __init__(self) -> None:
        self.rows = self.passed = self.contested = self.tampered = 0
        self.rewards: list[float] = []
        self.tokens = 0
        self.seconds = 0.0
        self.cost: float | None = None

    def add(self, row: Row) -> None:
        """Count one row."""
        self.rows += 1
        self.passed += bool(row.passed)
        if row.reward is not None:
            self.rewards.append(row.reward)
            self.contested += bool(row.verdict.get("contested"))
            self.tampered += bool(row.verdict.get("tampered"))
        self.tokens += row.tokens or 0
        self.seconds += row.seconds or 0.0
        if row.cost is not None:
            self.cost = (self.cost or 0.0) + row.cost

    def __str__(self) -> str:
        parts = [
            f"{self.rows} rollout{'s' if self.rows != 1 else ''}",
            f"{self.passed} passed ({100 * self.passed / self.rows:.1f}%)" if self.rows else "",
            f"{self.rows - len(self.rewards)} without a score" if len(self.rewards) < self.rows else "",
            f"{self.contested} contested" if self.contested else "",
            f"{self.tampered} tampered" if self.tampered else "",
            f"mean reward {score(sum(self.rewards) / len(self.rewards))}" if self.rewards else "",
            f"{count(self.tokens)} completion tokens" if self.tokens else "",
            f"${self.cost:.2f}" if self.cost is not None else "",
            f"{duration(self.seconds)} of rollouts" if self.seconds else "",
        ]
        return ", ".join(filter(None, parts))


_ROLE_STYLES = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}


def _print_row(console: Console, row: Row, full: bool) -> None:
    from rich.text import Text

    limit = sys.maxsize if full else SHORT
    for name, value in facts(row):
        console.print(Text(f"{name:>12}  ", style="dim").append(value, style="not dim"), soft_wrap=True)
    for message in row.messages:
        role = one_line(str(message.get("role") or "?"), 20)
        console.print()
        console.print(Text(f"── {role} ──", style=f"bold {_ROLE_STYLES.get(role, 'white')}"))
        for piece in pieces(message, limit):
            if piece.kind in ("call", "result") or piece.title:
                mark = {"call": "→ ", "result": "← "}.get(piece.kind, "")
                console.print(Text(mark + piece.title, style="bold cyan"), soft_wrap=True)
            style = "dim italic" if piece.kind == "reasoning" else "cyan" if piece.kind == "image" else ""
            console.print(Text(piece.text, style=style), soft_wrap=True)
    if not row.messages:
        console.print("\n(no conversation in the file; process keeps it with --env.include_messages true)")
    for title, text in endings(row, limit):
        console.print()
        console.print(Text(f"── {title} ──", style="bold"))
        console.print(Text(text), soft_wrap=True)


def facts(row: Row) -> list[tuple[str, str]]:
    """Name and value of what stands above a conversation; harmless."""
    pairs = list(zip(COLUMNS, cells(row), strict=True))
    pairs[0] = ("row", row.place)
    pairs.append(("model", one_line(row.model, 200) or "-"))
    if row.cost is not None:
        pairs.append(("cost", f"${row.cost:.4f}"))
    shown = set(COLUMNS) | {"reward", "tool_errors", "item_id", "outcome", "turns_used"}
    pairs.extend(
        (one_line(name, 20), one_line(_as_text(value), 300))
        for name, value in row.details.items()
        if name not in shown
    )
    return [(name, value) for name, value in pairs if value != "-"]


def endings(row: Row, limit: int) -> Iterator[tuple[str, str]]:
    """Title and text of what stands below a conversation: verdict, failures, tool errors, times.

    ``limit`` is the longest text in characters.
    """
    sections: list[tuple[str, Any]] = [
        ("verdict", row.verdict),
        *((f"failure of try {f.get('try_number', '?')}", f) for f in row.failures),
        *(("tool error", error) for error in row.details.get("tool_errors") or []),
        ("times", {name: duration(v) for name, v in row.timings.items() if _is_duration(name, v)}),
    ]
    for title, value in sections:
        text = "\n".join(_lines(value, limit))
        if text:
            yield title, text


def _lines(value: Any, limit: int, name: str = "") -> Iterator[str]:
    """``name: value`` on lines of their own, nested names with dots; what says nothing is left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _lines(item, limit, f"{name}.{key}" if name else str(key))
    elif not (value is None or value is False or value in ("", "none") or value == []) and not (
        name.endswith("_at") and value == 0
    ):
        text = harmless(shorten(_as_text(value).strip("\n"), limit))
        separator = ":\n" if "\n" in text else ": "
        yield f"{harmless(name)}{separator}{text}" if name else text


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _is_duration(name: str, value: Any) -> bool:
    return isinstance(value, int | float) and value > 0 and not name.endswith("_at")
