from __future__ import annotations

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.tools.edits import EditError, split
from environments.tools.v4a import apply_hunks, parse_patch


def patched(text: str, *body: str) -> str:
    (part,) = parse_patch("\n".join(["*** Begin Patch", "*** Update File: f", *body, "*** End Patch"]))
    return apply_hunks(text, part.hunks, "f")[0]


CLASSES = """class A:
    def run(self):
        return 1

    def stop(self):
        pass


class B:
    def run(self):
        return 1
"""


def test_a_hunk_with_context() -> None:
    assert patched("a\nb\nc\n", " a", "-b", "+x", "+y", " c") == "a\nx\ny\nc\n"


def test_anchors_tell_equal_places_apart() -> None:
    assert patched(CLASSES, "@@ class B:", "-        return 1", "+        return 2").endswith("return 2\n")
    first = patched(CLASSES, "@@ class A:", "@@ def run(self):", "-        return 1", "+        return 2")
    assert first == CLASSES.replace("return 1", "return 2", 1)
    with pytest.raises(EditError, match="fits 2 places, at lines 3, 11"):
        patched(CLASSES, "-        return 1", "+        return 2")
    with pytest.raises(EditError, match="fits 2 places, at lines 3, 11"):
        patched(CLASSES, "@@ def run(self):", "-        return 1", "+        return 2")


def test_an_anchor_that_is_nowhere_and_one_that_is_below() -> None:
    with pytest.raises(EditError, match=r"no line is like '@@ class C:'.*nearest text"):
        patched(CLASSES, "@@ class C:", "-        pass", "+        return")
    with pytest.raises(EditError, match=r"stand only above '@@ class B:' \(line 9\)"):
        patched(CLASSES, "@@ class B:", "-        pass", "+        return")


def test_an_anchor_does_not_lead_into_the_next_block_of_its_kind() -> None:
    text = "def f():\n    x = 0\n\ndef g():\n    x = 1\n"
    with pytest.raises(EditError, match=r"not in '@@ def f\(\):', but at lines 5"):
        patched(text, "@@ def f():", "-    x = 1", "+    x = 2")
    assert patched(text, "@@ def g():", "-    x = 1", "+    x = 2").endswith("x = 2\n")
    flat = "int f() {\n  a();\n#ifdef X\n  b();\n#endif\n}\n"
    assert "  c();" in patched(flat, "@@ int f() {", "-  b();", "+  c();")


def test_the_order_of_hunks_tells_equal_places_apart() -> None:
    text = "x\n1\ny\n1\n"
    assert patched(text, "@@", "-y", "+z", "@@", "-1", "+2") == "x\n1\nz\n2\n"
    assert patched("a\nb\nc\n", "@@", "-c", "+C", "@@", "-a", "+A") == "A\nb\nC\n"


def test_line_numbers_in_a_header_are_no_anchor() -> None:
    assert patched("a\nb\n", "@@ -17,2 +90,2 @@", " a", "-b", "+c") == "a\nc\n"
    assert patched("a\nb\n", "@@ a @@", "-b", "+c") == "a\nc\n"


def test_insertions_need_a_place() -> None:
    assert patched("a\nb\n", "@@ a", "+new") == "a\nnew\nb\n"
    assert patched("a\n", "+end", "*** End of File") == "a\nend\n"
    assert patched("", "+first") == "first\n"
    with pytest.raises(EditError, match="only adds lines"):
        patched("a\nb\n", "+new")


def test_end_of_file_means_the_end() -> None:
    assert patched("a\nb\na\n", "-a", "+c", "*** End of File") == "a\nb\nc\n"
    with pytest.raises(EditError, match="not found at the end"):
        patched("a\nb\n", "-a", "+c", "*** End of File")


def test_final_newline_and_crlf_stay_as_they_are() -> None:
    assert patched("a\nb", " a", "-b", "+c") == "a\nc"
    assert patched("a\nb", " b", "+c") == "a\nb\nc"
    assert patched("a\r\nb\r\n", " a", "-b", "+c", "+d") == "a\r\nc\r\nd\r\n"
    assert patched("a\nb", "-a", "-b") == ""


def test_indentation_is_shifted_and_context_stays_the_files_own() -> None:
    assert patched("if x:\n    a  \n    b\n", " a", "-b", "+c") == "if x:\n    a  \n    c\n"
    assert patched("  a\n\n  b\n", " a", "", "-b", "+c") == "  a\n\n  c\n"


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "must begin with the line"),
        ("*** Update File: f\n-a\n+b\n*** End Patch", "must begin with the line"),
        ("*** Begin Patch\n*** Update File: f\n-a\n+b", "may have been cut off"),
        ("*** Begin Patch\n*** End Patch", "has no"),
        ("*** Begin Patch\n-a\n*** End Patch", "line 2 of the patch is '-a'; expected"),
        ("*** Begin Patch\n*** Update File: f\nabc\n*** End Patch", "line 3 of the patch is 'abc'"),
        ("*** Begin Patch\n*** Update File: f\n*** End Patch", "has no hunk"),
        ("*** Begin Patch\n*** Update File: f\n a\n*** End Patch", "changes nothing"),
        ("*** Begin Patch\n*** Add File: f\ntext\n*** End Patch", "expected a line that begins with"),
        ("*** Begin Patch\n*** Delete File: f\n-a\n*** End Patch", "expected nothing"),
        ("*** Begin Patch\n*** Rename File: f\n*** End Patch", "expected '\\*\\*\\* Update File"),
    ],
)
def test_a_patch_that_cannot_be_read_says_where(patch: str, message: str) -> None:
    with pytest.raises(EditError, match=message):
        parse_patch(patch)


def test_hunks_that_overlap_are_refused() -> None:
    with pytest.raises(EditError, match="change the same lines near line 2"):
        patched("a\nb\nc\n", "@@", " a", "-b", "+x", "@@", "-b", "+y", " c")


words = st.lists(st.sampled_from(["a", "b", "  c", "", "d {"]), max_size=10)


@given(words, words, st.booleans(), st.sampled_from(["\n", "\r\n"]), st.integers(0, 3))
def test_a_patch_made_from_two_texts_gives_the_second_or_an_error(
    before: list[str], after: list[str], closed: bool, end: str, context: int
) -> None:
    """Hunks made by difflib: what is applied is the intended text, however ambiguous the lines are."""
    old = end.join(before) + (end if closed and before else "")
    new = end.join(after) + (end if closed and after else "")
    body = [
        line
        for line in difflib.unified_diff(before, after, n=context, lineterm="")
        if line[:3] not in ("---", "+++")
    ]
    if not body or split(old)[0] != before or split(new)[0] != after:
        return
    try:
        result = patched(old, *body)
    except EditError:
        return
    assert split(result)[0] == after
    assert ("\r" in result) <= ("\r" in old)
    if result and before:
        assert result.endswith("\n") == old.endswith("\n")


@given(st.text(alphabet="*+- @abEndPtchFile:\n", max_size=80))
def test_any_text_is_a_patch_or_an_error(text: str) -> None:
    for candidate in (text, f"*** Begin Patch\n*** Update File: f\n{text}\n*** End Patch"):
        try:
            for part in parse_patch(candidate):
                apply_hunks("a\nb\n", part.hunks, "f")
        except EditError as error:
            assert str(error)
