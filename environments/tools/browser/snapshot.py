"""What a page shows, as text: its accessibility tree with a ref for each element.

Playwright makes the tree, one element a line, indented; here it is made shorter for a model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

COMPACT_CHARACTERS = 12_000
FULL_CHARACTERS = 60_000

_LINE = re.compile(r"(?P<indent> *)- (?P<role>'?[\w/]+)(?P<rest>.*)")
_REF = re.compile(r"\[ref=((?:f\d+)?e\d+)\]")
_GIVEN_REF = re.compile(r"\W*(?:ref\s*=\s*)?@?((?:f\d+)?e\d+)\W*\Z", re.IGNORECASE)
_KEPT = {
    *("button", "checkbox", "combobox", "gridcell", "link", "listbox", "menuitem", "menuitemcheckbox"),
    *("menuitemradio", "option", "radio", "scrollbar", "searchbox", "slider", "spinbutton", "switch", "tab"),
    *("textbox", "treeitem"),
    *("heading", "alert", "alertdialog", "dialog", "iframe", "status", "img", "progressbar"),
    *("/url", "/placeholder"),
}
"""Roles, and properties of the line before, that a compact snapshot shows."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Text for the model and the refs in it."""

    text: str
    refs: frozenset[str]


def compact(tree: str) -> Snapshot:
    """Only what can be acted on, with headings and messages."""
    kept: list[str] = []
    above: list[tuple[int, bool]] = []  # the elements around the one at hand: indent, and whether it is shown
    for line in tree.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        indent = len(found["indent"])
        while above and above[-1][0] >= indent:
            above.pop()
        shown = _is_kept(found)
        if shown:
            kept.append("  " * sum(is_shown for _, is_shown in above) + line.strip())
        above.append((indent, shown))
    if not kept:
        return full(tree)
    return _cut(kept, COMPACT_CHARACTERS, "full=true, scroll or browser_console show more")


def full(tree: str) -> Snapshot:
    """The whole tree."""
    return _cut(tree.splitlines(), FULL_CHARACTERS, "browser_console can read the rest")


def given_ref(text: str) -> str | None:
    """The ref in what a model wrote for one: ``e5``, ``@e5``, ``[ref=e5]``."""
    found = _GIVEN_REF.match(text)
    return found[1].lower() if found else None


def _is_kept(line: re.Match[str]) -> bool:
    return line["role"].lstrip("'") in _KEPT or "[cursor=pointer]" in line["rest"]


def _cut(lines: list[str], limit: int, more: str) -> Snapshot:
    size = 0
    for number, line in enumerate(lines):
        size += len(line) + 1
        if size > limit:
            text = "\n".join([*lines[:number], f"[{len(lines) - number} more lines; {more}]"])
            return Snapshot(text, frozenset(_REF.findall(text)))
    text = "\n".join(lines)
    return Snapshot(text, frozenset(_REF.findall(text)))
