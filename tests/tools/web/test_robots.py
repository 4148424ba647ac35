from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools.web.robots import parse

FILE = """\ufeff# a site
User-agent: otherbot
Disallow: /

User-Agent: *
Disallow: /private   # not for programs
Allow: /private/open
Disallow: /*.pdf$
Disallow: /search?*q=
Disallow:
Crawl-delay: 3
"""


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        *(("/", True), ("/private", False), ("/private/x", False), ("/privateer", False)),
        *(("/private/open/x", True), ("/a/b.pdf", False), ("/a/b.pdf?x", True), ("/search?a=1&q=2", False)),
        ("/search?a=1", True),
    ],
)
def test_the_longest_rule_decides(path: str, allowed: bool) -> None:
    assert parse(FILE).allows(path) is allowed


def test_a_group_of_our_own_counts_alone() -> None:
    text = "User-agent: a\nUser-agent: HermesEnvironments\nDisallow: /x\n\nUser-agent: *\nDisallow: /\n"
    assert parse(text).allows("/y")
    assert not parse(text).allows("/x")
    assert not parse(text, "somebody").allows("/y")


def test_of_equal_rules_the_one_that_allows_wins() -> None:
    assert parse("User-agent: *\nDisallow: /a\nAllow: /a").allows("/a")


def test_a_hostile_pattern_costs_no_time() -> None:
    robots = parse("User-agent: *\nDisallow: /" + "*a" * 500 + "$")
    started = time.perf_counter()
    robots.allows("/" + "a" * 400 + "b" * 5000)
    assert time.perf_counter() - started < 5


@given(st.text(), st.text())
def test_any_text_is_read(text: str, path: str) -> None:
    assert parse(text).allows(f"/{path}") in (True, False)


@given(st.lists(st.sampled_from(["a", "b", "*", "/", "$"]), max_size=8), st.text("ab/$", max_size=12))
def test_patterns_mean_what_a_plain_matcher_says(parts: list[str], rest: str) -> None:
    rule, path = "/" + "".join(parts), f"/{rest}"

    def matches(pattern: str, text: str) -> bool:
        if pattern == "":
            return True
        if pattern == "$":
            return text == ""
        if pattern[0] == "*":
            return any(matches(pattern[1:], text[i:]) for i in range(len(text) + 1))
        return text[:1] == pattern[0] and matches(pattern[1:], text[1:])

    assert parse(f"User-agent: *\nDisallow: {rule}").allows(path) is not matches(rule, path)
