"""Marks that keep message content from being read as control tokens.

A control token is one that the tokenizer finds as a literal text, such as ``<|im_end|>``. Content goes
through the chat template with marks in it: one inside of each look-alike, and one at either end, so
that the template's own text beside it cannot complete a half one. What is found in the rendered text
after that was written by the template. The marks are lone surrogates: no text from outside can hold
them, and they never reach the tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

INNER = "\udc00"
"""Stands behind the first character of every look-alike in content."""

EDGE = "\udc01"
"""Stands at both ends of content."""

PLACE = "\udc02"
"""Stands for a text whose place in the rendered conversation is looked for."""

THOUGHT = "\udc03"
"""Stands for the thinking of a reply whose place is looked for."""

_SURROGATES = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """``text`` as any tokenizer can take it: lone surrogates become U+FFFD."""
    return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)


class Guard:
    """Marks the texts of messages for one set of control tokens."""

    def __init__(self, literals: Iterable[str]) -> None:
        trie = trie_pattern(literals)
        self._look_alike = re.compile(f"(?=(?:{trie}))(.)", re.DOTALL) if trie else None

    def inner(self, text: str) -> str:
        """``text`` in which no control token can be found."""
        text = without_surrogates(text)
        return self._look_alike.sub(rf"\1{INNER}", text) if self._look_alike else text

    def content(self, text: str) -> str:
        """The same, and separated from what the template puts before and after it.

        White space at the ends stays outside the marks, where templates trim it.
        """
        text = self.inner(text)
        body = text.strip()
        if not body:
            return text
        start = text.index(body)
        end = start + len(body)
        return f"{text[:start]}{EDGE}{body}{EDGE}{text[end:]}"

    def everywhere(self, value: Any, *, ends: bool) -> Any:
        """A copy of a JSON value with every text in it marked, keys as well; ``ends`` as in ``content``."""
        if isinstance(value, str):
            return self.content(value) if ends else self.inner(value)
        if isinstance(value, dict):
            return {
                self.inner(k) if isinstance(k, str) else k: self.everywhere(v, ends=ends)
                for k, v in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.everywhere(entry, ends=ends) for entry in value]
        return value


def without_guards(text: str) -> str:
    """``text`` as it is encoded."""
    return text.replace(INNER, "").replace(EDGE, "")


def without_marks(text: str) -> str:
    """``text`` for people to read."""
    return _SURROGATES.sub("", text)


def trie_pattern(literals: Iterable[str]) -> str:
    """A regular expression that matches the longest of the literals, however many there are."""
    root: dict[str, Any] = {}
    for literal in literals:
        node = root
        for character in literal:
            node = node.setdefault(character, {})
        if literal:
            node[""] = {}
    return _branches(root) if root else ""


def _branches(node: dict[str, Any]) -> str:
    ends = "" in node
    alternatives = [re.escape(c) + _branches(child) for c, child in node.items() if c]
    if not alternatives:
        return ""
    body = alternatives[0] if len(alternatives) == 1 and not ends else f"(?:{'|'.join(alternatives)})"
    return f"{body}?" if ends else body
