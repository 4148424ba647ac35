from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools.browser.snapshot import COMPACT_CHARACTERS, compact, full, given_ref

TREE = """- generic [active] [ref=e1]:
  - heading "Shop" [level=1] [ref=e2]
  - list [ref=e4]:
    - listitem [ref=e5]: Tea
    - listitem [ref=e6]:
      - link "Coffee" [ref=e7] [cursor=pointer]:
        - /url: /coffee
  - paragraph [ref=e8]: A long story
  - generic [ref=e9] [cursor=pointer]: clicky
  - 'button "Save: all" [ref=e10]'
  - iframe [ref=e11]:
    - textbox "Name" [ref=f1e2]"""


def test_a_compact_snapshot_has_what_can_be_acted_on() -> None:
    found = compact(TREE)
    assert found.text.splitlines() == [
        '- heading "Shop" [level=1] [ref=e2]',
        '- link "Coffee" [ref=e7] [cursor=pointer]:',
        "  - /url: /coffee",
        "- generic [ref=e9] [cursor=pointer]: clicky",
        "- 'button \"Save: all\" [ref=e10]'",
        "- iframe [ref=e11]:",
        '  - textbox "Name" [ref=f1e2]',
    ]
    assert found.refs == {"e2", "e7", "e9", "e10", "e11", "f1e2"}


def test_a_full_snapshot_is_the_tree_and_stands_in_where_nothing_can_be_done() -> None:
    assert full(TREE).text == TREE
    assert compact("- paragraph [ref=e1]: words").text == "- paragraph [ref=e1]: words"
    assert full("").refs == frozenset()


def test_a_long_one_is_cut_between_lines_and_knows_only_the_refs_it_shows() -> None:
    tree = "\n".join(f'- button "Number {n}" [ref=e{n}]' for n in range(2_000))
    found = compact(tree)
    *lines, notice = found.text.splitlines()
    assert len(found.text) < COMPACT_CHARACTERS + 200
    assert notice == f"[{2_000 - len(lines)} more lines; full=true, scroll or browser_console show more]"
    assert found.refs == {f"e{n}" for n in range(len(lines))}


@pytest.mark.parametrize("text", ["e5", "@e5", "ref=e5", "[ref=e5]", " E5 ", "`e5`", "ref = @e5"])
def test_refs_are_taken_as_models_write_them(text: str) -> None:
    assert given_ref(text) == "e5"


@pytest.mark.parametrize("text", ["", "5", "button", "e", "e5 e6", "e5x", "#e", "xe5"])
def test_what_is_no_ref_is_none(text: str) -> None:
    assert given_ref(text) is None


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    compact(text)
    full(text)
    given_ref(text)
