from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from environments.tools.text import OUTPUT_LIMIT, shorten, shorten_line, strip_escapes


@given(st.text(alphabet="ab\n", max_size=400), st.integers(60, 300))
def test_output_is_never_longer_than_the_limit_and_counts_what_is_left_out(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert len(short) <= limit
    if len(text) <= limit:
        assert short == text
        return
    notice = re.search(r"\n\n\[\.\.\. ([\d,]+) characters left out \.\.\.\]\n\n", short)
    assert notice is not None
    head, tail = short[: notice.start()], short[notice.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + int(notice[1].replace(",", "")) + len(tail) == len(text)


def test_forty_percent_from_the_start_and_sixty_from_the_end() -> None:
    text = "a" * 100_000 + "b" * 100_000
    short = shorten(text)
    assert len(short) <= OUTPUT_LIMIT
    assert abs(short.count("a") / (short.count("a") + short.count("b")) - 0.4) < 0.01


def test_what_the_sandbox_left_out_counts_too() -> None:
    assert "1,000,0" in shorten("x" * 60_000, 50_000, lost=990_000)


def test_escape_sequences_go_and_text_stays() -> None:
    coloured = "\x1b[1;31mred\x1b[0m \x1b]0;title\x07"
    link = "\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\ "
    assert (
        strip_escapes(coloured + link + "\x1b(Bplain\t\u0442\r\n\x1b[2K\x08\x1b")
        == "red link plain\t\u0442\n"
    )


@given(st.text())
def test_no_escape_is_left(text: str) -> None:
    assert "\x1b" not in strip_escapes(text)


def test_long_lines_say_how_long_they_are() -> None:
    assert shorten_line("x" * 2_500, 2_000) == "x" * 2_000 + " [500 more characters in this line]"
    assert shorten_line("short", 2_000) == "short"
