"""robots.txt as RFC 9309 has it: the group of our name or of all, the longest rule that matches."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

AGENT = "hermesenvironments"
"""Our name in robots.txt, in small letters."""

LONGEST = 500 * 1024
"""Bytes of a file that count; the standard asks for no less."""

_MOST_RULES = 10_000


@dataclass(frozen=True, slots=True)
class Robots:
    """The rules of one site that concern us."""

    rules: list[tuple[int, bool, re.Pattern[str]]] = field(default_factory=list)
    """Length of the rule's text, whether it allows, and what it matches."""

    def allows(self, path: str) -> bool:
        """Whether a path with its query may be fetched; of rules equally long the one that allows wins."""
        matching = [(length, allowed) for length, allowed, pattern in self.rules if pattern.match(path)]
        return max(matching, default=(0, True))[1]


ALL = Robots()
NOTHING = Robots([(1, False, re.compile(r"/"))])


def parse(text: str, agent: str = AGENT) -> Robots:
    """The rules for us: those of groups with our name, else those for everyone."""
    mine: list[tuple[bool, str]] = []
    everyones: list[tuple[bool, str]] = []
    named = False
    current: list[list[tuple[bool, str]]] = []
    in_names = False
    for line in text.lstrip("\ufeff").splitlines():
        key, _, value = line.partition("#")[0].partition(":")
        key, value = key.strip().lower(), value.strip()
        if key == "user-agent":
            if not in_names:
                current = []
            in_names = True
            if value.lower() == agent:
                named = True
                current.append(mine)
            elif value == "*":
                current.append(everyones)
        elif key in ("allow", "disallow"):
            in_names = False
            for rules in current:
                if value and len(rules) < _MOST_RULES:
                    rules.append((key == "allow", value))
    return Robots([(len(rule), allowed, _pattern(rule)) for allowed, rule in (mine if named else everyones)])


def _pattern(rule: str) -> re.Pattern[str]:
    end = "$" if rule.endswith("$") else ""
    # Runs of stars would take exponential time and mean one star.
    parts = re.split(r"\*+", rule.removesuffix("$"))
    # Each part is found at its first place: enough, as only the last one may be tied to the end.
    if len(parts) == 1:
        return re.compile(re.escape(parts[0]) + (r"\Z" if end else ""))
    first, *middle, last = parts
    inner = "".join(rf"(?>.*?{re.escape(part)})" for part in middle if part)
    tail = rf".*{re.escape(last)}\Z" if end else rf"(?>.*?{re.escape(last)})"
    return re.compile(re.escape(first) + inner + tail, re.DOTALL)
