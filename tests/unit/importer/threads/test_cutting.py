"""Texts that are too long for an event."""

from services.importer.model import Blob
from services.importer.threads.cutting import Cutter


def test_a_text_that_fits_stays_as_it_is() -> None:
    cutter = Cutter(10)
    for text in ("", "abc", "0123456789", "äöüäö"):
        assert cutter.cut(text) is text
    assert cutter.blobs == [] and cutter.artifacts == []


def test_a_longer_one_keeps_its_head_and_tail_and_the_whole_is_an_artifact() -> None:
    cutter = Cutter(10)
    text = "0123456789abcdef"
    (head, middle, tail) = cutter.cut(text).split("\n")
    assert (head, tail) == ("01234", "bcdef")
    (kept,) = cutter.artifacts
    assert middle == f"[… 6 bytes left out; the whole text is the artifact {kept.sha256} …]"
    assert cutter.blobs == [Blob(text.encode(), "text/plain")] and kept.size == 16


def test_it_is_not_cut_within_a_letter() -> None:
    head, _, tail = Cutter(10).cut("ä" * 20).split("\n")
    assert (head, tail) == ("ää", "ää")


def test_what_is_there_twice_is_kept_once() -> None:
    cutter = Cutter(10)
    long = "x" * 11
    assert cutter.cut_json({"a": [long, 1, None], "b": {"c": long, "d": "short"}}) == {
        "a": [cutter.cut(long), 1, None],
        "b": {"c": cutter.cut(long), "d": "short"},
    }
    assert len(cutter.blobs) == len(cutter.artifacts) == 1
    assert cutter.keep(Blob(b"other", "image/png", "o.png")).name == "o.png"
    assert [blob.content for blob in cutter.blobs] == [long.encode(), b"other"]
