import difflib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.tool_executor.builtin.patch import (
    AddFile,
    DeleteFile,
    PatchError,
    UpdateFile,
    apply_hunks,
    parse_patch,
)

LINES = st.lists(st.sampled_from(["a", "b", "c", "", "  d", "e "]), max_size=25)
SOURCE = "def one():\n    return 1\n\n\ndef two():\n    return 1\n"


def envelope(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def updated(text: str, *lines: str) -> str:
    (patch,) = parse_patch(envelope("*** Update File: f", *lines))
    return apply_hunks(patch.path, text, patch.hunks)


@example(old=[""], new=["a", ""], context=1, old_newline=True, new_newline=True)
@given(LINES, LINES, st.integers(0, 4), st.booleans(), st.booleans())
def test_unified_diffs_apply_as_diff_meant_them(old, new, context, old_newline, new_newline):
    before = "\n".join(old) + ("\n" if old and old_newline else "")
    after = "\n".join(new) + ("\n" if new and new_newline else "")
    diff = unified(before, after, context)
    if not diff:
        return
    (patch,) = parse_patch(diff)
    assert apply_hunks("f", before, patch.hunks) == after


def unified(before: str, after: str, context: int) -> str:
    """As `diff -u` writes it, with its marks of a missing last newline."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), "a/f", "b/f", n=context
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@given(LINES, LINES)
def test_one_hunk_of_everything_applies(old, new):
    lines = [f"-{line}" for line in old] + [f"+{line}" for line in new]
    if not lines:
        return
    before = "".join(f"{line}\n" for line in old)
    assert updated(before, "@@", *lines) == "".join(f"{line}\n" for line in new)


def test_a_hunk_is_found_by_its_content():
    assert updated(SOURCE, "@@", " def two():", "-    return 1", "+    return 2") == SOURCE.replace(
        "two():\n    return 1", "two():\n    return 2"
    )


def test_an_anchor_says_where_to_look_from():
    patched = updated(SOURCE, "@@ def two():", "-    return 1", "+    return 2")
    assert patched == "def one():\n    return 1\n\n\ndef two():\n    return 2\n"


def test_anchors_nest():
    text = "class A:\n    def f():\n        x = 1\nclass B:\n    def f():\n        x = 1\n"
    patched = updated(text, "@@ class B:", "@@ def f():", "-        x = 1", "+        x = 2")
    assert patched == text[::-1].replace("1 =", "2 =", 1)[::-1]


def test_two_hunks_go_on_from_each_other():
    patched = updated(SOURCE, "@@", "-    return 1", "+    return 3", "@@", "-    return 1", "+    return 4")
    assert patched == "def one():\n    return 3\n\n\ndef two():\n    return 4\n"


def test_no_header_is_needed_for_the_first_hunk():
    assert updated(SOURCE, " def one():", "-    return 1", "+    return 7").startswith("def one():\n    return 7\n")


def test_insertion_goes_after_its_anchor_or_to_the_end():
    assert updated("a\nb\n", "@@ a", "+x") == "a\nx\nb\n"
    assert updated("a\nb\n", "@@", "+x") == "a\nb\nx\n"
    assert updated("", "@@", "+x") == "x\n"


def test_end_of_file_chooses_the_last_place():
    assert updated("a\nb\na\n", "@@", "-a", "+z", "*** End of File") == "a\nb\nz\n"


def test_spaces_may_differ_and_the_files_own_are_kept():
    text = "if x:  \n\tone()\n\ttwo()  \n"
    assert (
        updated(text, "@@", " if x:", "-    one()", "+    three()", "     two()") == "if x:  \n    three()\n\ttwo()  \n"
    )


def test_a_blank_line_of_context_may_lack_its_space():
    assert updated("a\n\nb\n", "@@", " a", "", "-b", "+c") == "a\n\nc\n"


def test_blank_lines_between_files_are_layout():
    patches = parse_patch(
        envelope("*** Update File: f", "@@", "-a", "+b", "", "*** Add File: g", "+x", "", "*** Delete File: h", "")
    )
    assert patches == (
        parse_patch(envelope("*** Update File: f", "@@", "-a", "+b"))[0],
        AddFile("g", "x\n"),
        DeleteFile("h"),
    )


def test_windows_line_ends_stay():
    assert updated("a\r\nb\r\n", "@@", " a", "-b", "+c") == "a\r\nc\r\n"
    assert updated("a\r\nb\n", "@@", "-b", "+c") == "a\r\nc\n"


def test_a_missing_last_newline_stays_missing():
    assert updated("a\nb", "@@", "-a", "+c") == "c\nb"


def test_a_fence_around_the_patch_is_taken_off():
    fenced = "\n```diff\n" + envelope("*** Add File: f", "+x") + "\n```\n"
    assert parse_patch(fenced) == (AddFile("f", "x\n"),)


def test_unified_of_several_files():
    patches = parse_patch(
        "diff --git a/new.txt b/new.txt\nnew file mode 100644\nindex 0000000..1\n--- /dev/null\n+++ b/new.txt\n"
        "@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n"
        "diff --git a/gone.txt b/gone.txt\ndeleted file mode 100644\n--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/old name b/new name\nsimilarity index 100%\nrename from old name\nrename to new name\n"
        "diff --git a/moved b/there\nsimilarity index 80%\nrename from moved\nrename to there\n"
        "--- a/moved\t2026-01-01\n+++ b/there\n@@ -1,2 +1,2 @@ def f\n a\n-b\n+c\n"
    )
    assert patches[:3] == (
        AddFile("new.txt", "one\ntwo"),
        DeleteFile("gone.txt"),
        UpdateFile("old name", (), "new name"),
    )
    moved = patches[3]
    assert (moved.path, moved.move_to) == ("moved", "there")
    assert apply_hunks("moved", "a\nb\n", moved.hunks) == "a\nc\n"


def test_unified_without_prefixes_and_with_wrong_counts():
    (patch,) = parse_patch("--- f\n+++ f\n@@ -1,9 +1,9 @@\n a\n-b\n+c\n")
    assert apply_hunks("f", "a\nb\n", patch.hunks) == "a\nc\n"


def test_line_numbers_choose_among_equal_places():
    (patch,) = parse_patch("--- a/f\n+++ b/f\n@@ -5,1 +5,1 @@\n-x\n+y\n")
    assert apply_hunks("f", "x\n1\n2\n3\nx\n", patch.hunks) == "x\n1\n2\n3\ny\n"


def test_what_does_not_match_is_named_with_the_closest_place():
    with pytest.raises(PatchError) as raised:
        updated(SOURCE, "@@", "-    return 1", "+    return 2", "@@", " def two():", "-    return 9", "+    return 2")
    assert "f, hunk 2" in str(raised.value)
    assert "return 9" in str(raised.value)
    assert "line 5, reads:\ndef two():\n    return 1" in str(raised.value)


def test_hunks_out_of_order_are_said_to_be():
    with pytest.raises(PatchError, match="order of the file"):
        updated("a\nb\n", "@@", "-b", "+x", "@@", "-a", "+y")


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("just text", "no patch"),
        ("", "no patch"),
        ("*** Begin Patch\n*** Add File: f\n+x", "cut off"),
        (envelope(), "changes no file"),
        (envelope("*** Update File: f"), "holds no change"),
        (envelope("*** Update File: "), "names no file"),
        (envelope("*** Frobnicate: f"), "is no `"),
        (envelope("*** Add File: f", "+x", "y"), "starts with `\\+`"),
        (envelope("*** Delete File: f", "x"), "nothing may follow"),
        (envelope("*** Update File: f", "@@", "~x"), "hunk 1"),
        ("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n*b\n", "starts with none of"),
        ("--- a/f\n+++ b/f\n", "holds no change"),
        ("diff --git a/f b/f\nBinary files a/f and b/f differ\n", "Binary"),
    ],
)
def test_what_is_no_patch_says_why(patch, message):
    with pytest.raises(PatchError, match=message):
        parse_patch(patch)


def test_an_anchor_that_is_not_there_is_named():
    with pytest.raises(PatchError, match="hunk 1: its `@@ def three"):
        updated(SOURCE, "@@ def three():", "-    return 1", "+    return 2")


@given(st.text(alphabet="*+- @\n\\adEndPatchBegiUplFr:/0123456789,", max_size=200))
def test_any_text_is_a_patch_or_a_clear_error(text):
    for candidate in (text, envelope(text), f"--- a/f\n+++ b/f\n{text}"):
        try:
            patches = parse_patch(candidate)
            for patch in patches:
                if isinstance(patch, UpdateFile):
                    apply_hunks(patch.path, "a\nb\n", patch.hunks)
        except PatchError as error:
            assert str(error)
