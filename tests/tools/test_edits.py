from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from environments.tools.diffs import unified_diff
from environments.tools.edits import EditError, Lines, TextFile, find_lines, replace_text, split

line = st.text(alphabet="ab {}\t", max_size=6)
text_of_lines = st.lists(line, min_size=1, max_size=12).map("\n".join)
small = st.text(alphabet="ab \n\r", max_size=30)


@given(small, st.text(alphabet="ab \n\r", min_size=1, max_size=4), st.text(alphabet="xy\n", max_size=4))
def test_a_literal_place_is_replaced_exactly_or_refused(text: str, old: str, new: str) -> None:
    text, old = text.replace("\r", ""), old.replace("\r", "") or "a"
    text += old
    assume(old != new)
    places = sum(text.startswith(old, i) for i in range(len(text)))
    if places > 1:
        with pytest.raises(EditError, match=f"fits {places} places, at lines"):
            replace_text(text, old, new)
        assert replace_text(text, old, new, replace_all=True)[0] == text.replace(old, new)
    else:
        assert replace_text(text, old, new) == (text.replace(old, new), 1, None)


@given(small, small, small)
def test_nothing_but_the_place_changes_whatever_is_given(text: str, old: str, new: str) -> None:
    try:
        changed, count, _ = replace_text(text, old, new)
    except EditError as error:
        assert str(error)
        return
    assert count == 1
    assert _squeezed(old) in _squeezed(text)
    assert sorted(_squeezed(changed)) == sorted(_difference(text, old) + _squeezed(new))


def _difference(text: str, old: str) -> str:
    left = list(_squeezed(text))
    for character in _squeezed(old):
        left.remove(character)
    return "".join(left)


def _squeezed(text: str) -> str:
    return "".join(text.split())


@given(
    st.lists(st.integers(0, 99).map("<{}>".format), min_size=3, max_size=8, unique=True),
    st.data(),
    st.sampled_from(["", "  ", "\t"]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_shifted_and_crlf_blocks_become_what_was_meant(
    words: list[str], data: st.DataObject, indent: str, end: str, closed: bool
) -> None:
    """The model leaves the indentation out and writes LF; the file keeps both as they are."""
    start = data.draw(st.integers(0, len(words) - 2))
    stop = data.draw(st.integers(start + 2, len(words)))
    text = end.join(indent + word for word in words) + (end if closed else "")
    changed, _, _ = replace_text(text, "\n".join(words[start:stop]), "new\n  deeper\n\nlast")
    block = [f"{indent}new", f"{indent}  deeper", "", f"{indent}last"]
    lines = [indent + w for w in words[:start]] + block + [indent + w for w in words[stop:]]
    expected = end.join(lines) + (end if closed else "")
    assert changed == expected


def test_the_ladder_in_order() -> None:
    text = "if a:\n    x = 1\n    y = 2  \n\nif b:\n\tx = 1\n"
    assert replace_text(text, "x = 1\n    y", "z = 1\n    y")[2] is None
    changed, _, note = replace_text(text, "    x = 1\n    y = 2\n\n", "    z = 3\n\n")
    assert changed == "if a:\n    z = 3\n\nif b:\n\tx = 1\n"
    assert note is not None
    changed, _, note = replace_text(text, "x = 1\ny = 2", "while True:\n    x = 1")
    assert changed == "if a:\n    while True:\n        x = 1\n\nif b:\n\tx = 1\n"
    assert note == "the new text was indented by '    ' more, as in the file"
    changed, _, note = replace_text("x = 1\ny = 2\n", "  x = 1\n  y = 2\n", "  x = 2\n  y = 2\n")
    assert changed == "x = 2\ny = 2\n"


def test_what_cannot_be_shifted_back_is_refused() -> None:
    with pytest.raises(EditError, match="cannot be shifted alike"):
        replace_text("x = 1\ny = 2\n", "  x = 1\n  y = 2", "x = 2\ny = 2")


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("    x = 1\n  y = 2\n", "x = 1\ny = 2"),
        ("x = 1\ny = 2\n", "x = 1\ny  = 2"),
        ("x = 1\n\n\ny = 2\n", "x = 1\n\ny = 2"),
        ("print('a')\n", 'print("a")'),
        ("\tx\n    y\n", "x\ny"),
    ],
)
def test_nothing_looser_than_the_ladder_matches(text: str, old: str) -> None:
    with pytest.raises(EditError, match="was not found"):
        replace_text(text, old, "new")


def test_line_numbers_of_all_candidates() -> None:
    with pytest.raises(EditError, match="fits 3 places, at lines 1, 3, 5; add lines around it"):
        replace_text("a\nb\na\nb\na\n", "a", "c")
    with pytest.raises(EditError, match="fits 2 places, at lines 2, 5"):
        replace_text("if x:\n  a\n  b\nif y:\n  a\n  b\n", "a\nb", "c")
    assert replace_text("if x:\n  a\n  b\nif y:\n\ta\n\tb\n", "a\nb", "c", replace_all=True)[0] == (
        "if x:\n  c\nif y:\n\tc\n"
    )


def test_crlf_stays_and_a_literal_carriage_return_is_meant() -> None:
    assert replace_text("a\r\nb\r\n", "a", "x\ny")[0] == "x\r\ny\r\nb\r\n"
    assert replace_text("a\r\nb\r\n", "a\nb\n", "c\n")[0] == "c\r\n"
    assert replace_text("a\nb\n", "a\r\nb", "x\r\ny")[0] == "x\ny\n"
    assert replace_text("a\r\nb\r\n", "a\r\nb", "a\nb")[0] == "a\nb\r\n"
    assert replace_text("a\nb\r\nc\n", "a\nb\n", "x\ny\n")[0] == "x\ny\nc\n"


def test_no_line_end_is_cut_in_half() -> None:
    assert replace_text("a\r\nfoo\r\n", "\nfoo", "\nbar")[0] == "a\r\nbar\r\n"
    assert replace_text("\r\n\r\na", "\na", "")[0] == "\r\n"
    assert replace_text("a\r\nb\r\n", "b\n", "")[0] == "a\r\n"
    with pytest.raises(EditError, match="fits 2 places"):
        replace_text("1\r\nx\n2\nx\n", "\nx", "\ny")
    assert replace_text("a\r\n", "a\r", "b")[0] == "b\r\n"


def test_a_missing_final_newline_stays_missing() -> None:
    assert replace_text("a\nb", "b\n", "c\n")[0] == "a\nc"
    assert replace_text("a\nb", "b", "c")[0] == "a\nc"
    assert replace_text("a\nb \nc", "b\n", "")[0] == "a\nc"


def test_the_nearest_text_is_shown() -> None:
    text = "".join(f"def f{n}():\n    return {n}\n\n" for n in range(50))
    with pytest.raises(EditError, match=r"nearest text is at line 61:\n    60\|\n    61\|def f20\(\):"):
        replace_text(text, "def f20():\n    return 21", "x")
    with pytest.raises(EditError, match=r"Nothing in the file is like it"):
        replace_text("alpha\n", "0123456789", "x")
    with pytest.raises(EditError, match=r"The file is empty"):
        replace_text("", "x", "y")


@pytest.mark.parametrize(
    ("old", "new", "message"), [("", "x", "old_string is empty"), ("a", "a", "the same")]
)
def test_edits_that_mean_nothing(old: str, new: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        replace_text("a\n", old, new)


@given(st.binary(max_size=40))
def test_any_bytes_survive(data: bytes) -> None:
    file = TextFile.decode(data)
    assert file.encode(file.text) == data


@given(st.text(alphabet="ab\r\n", max_size=40))
def test_split_loses_nothing(text: str) -> None:
    lines, ends = split(text)
    assert "".join(a + b for a, b in zip(lines, ends, strict=True)) == text


@given(st.lists(line, max_size=8), st.lists(line, min_size=1, max_size=3))
def test_lines_found_are_those_wanted_blanks_aside(lines: list[str], wanted: list[str]) -> None:
    for match in find_lines(Lines(lines), wanted):
        found = lines[match.start : match.start + len(wanted)]
        assert [line.strip() for line in found] == [line.strip() for line in wanted]


@given(text_of_lines, text_of_lines)
def test_a_diff_is_that_of_difflib(before: str, after: str) -> None:
    ours = unified_diff("f", before + "\n", after + "\n")
    patched = _apply_diff(before + "\n", ours)
    assert patched == after + "\n"


def _apply_diff(text: str, diff: str) -> str:
    lines, result, position = text.splitlines(keepends=True), [], 0
    for entry in diff.splitlines(keepends=True)[2:]:
        if entry.startswith("@@"):
            start = int(entry.split()[1].split(",")[0].lstrip("-"))
            length = entry.split()[1].partition(",")[2]
            start = start if length == "0" else start - 1
            result += lines[position:start]
            position = start
        elif entry.startswith("+"):
            result.append(entry[1:])
        else:
            assert lines[position] == entry[1:]
            position += 1
            if entry.startswith(" "):
                result.append(entry[1:])
    return "".join(result + lines[position:])


def test_diffs_of_large_files_are_quick_and_right() -> None:
    lines = [f"line {n}\n" for n in range(200_000)]
    changed = [*lines[:150_000], "new\n", *lines[150_001:]]
    diff = unified_diff("f", "".join(lines), "".join(changed))
    assert "@@ -149998,7 +149998,7 @@" in diff
    assert "-line 150000\n+new\n" in diff
    everything = unified_diff("f", "".join(lines), "".join(f"x{line}" for line in lines))
    assert "200000 lines replaced by 200000" in everything


def test_thousands_of_candidates_are_told_and_replaced() -> None:
    text = "word\n" * 50_000
    with pytest.raises(EditError, match="fits 1000 or more places, at lines 1, 2, 3"):
        replace_text(text, "word", "other")
    assert replace_text(text, "word", "other", replace_all=True)[1] == 50_000
    assert replace_text("aaaaa", "aa", "b", replace_all=True)[0] == "bba"
