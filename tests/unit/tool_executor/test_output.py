from hypothesis import given
from hypothesis import strategies as st

from schemas.canonical import canonical_json, unstorable
from services.chassis.sanitize import DEPTH_MAX, sanitize_json, sanitize_text
from services.tool_executor.output import HeadTail, LiveText, cut_text, structured_result, text_result


@given(st.text(alphabet=st.characters(codec=None), max_size=200))
def test_text_becomes_storable(text):
    assert unstorable(sanitize_text(text)) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)) | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec=None)) | st.integers(), inner),
        max_leaves=20,
    )
)
def test_anything_becomes_storable_json(value):
    storable = sanitize_json(value)
    assert unstorable(storable) is None
    canonical_json(storable)


def test_what_is_replaced_shows():
    assert sanitize_text("a\x00b\ud800c") == "a␀b�c"
    assert sanitize_json({"id": 2**60, "n": 5, "f": float("nan"), "b": True}) == {
        "id": str(2**60),
        "n": 5,
        "f": "nan",
        "b": True,
    }


def test_nesting_is_bounded():
    value: object = "leaf"
    for _ in range(DEPTH_MAX + 10):
        value = [value]
    assert "nested too deep" in str(sanitize_json(value))


@given(st.lists(st.binary(max_size=300), max_size=40), st.integers(100, 2_000))
def test_head_and_tail_count_every_byte(chunks, bytes_max):
    whole = b"".join(chunks)
    buffer = HeadTail(bytes_max)
    for chunk in chunks:
        buffer.add(chunk)
    cut = buffer.cut()
    assert buffer.bytes_seen == len(whole)
    assert len(cut.text.encode()) <= bytes_max
    if not cut.bytes_cut:
        assert cut.text == sanitize_text(whole.decode(errors="replace"))


@given(st.text(max_size=3_000), st.integers(100, 1_000))
def test_cut_text_keeps_both_ends_and_says_how_much_is_missing(text, bytes_max):
    text = sanitize_text(text)
    cut = cut_text(text, bytes_max)
    assert len(cut.text.encode()) <= bytes_max
    if len(text.encode()) <= bytes_max:
        assert cut.text == text
        return
    head, rest = cut.text.split("\n[… ", 1)
    number, tail = rest.split(" bytes cut …]\n", 1)
    assert int(number) == cut.bytes_cut == len(text.encode()) - len(head.encode()) - len(tail.encode())
    assert text.startswith(head)
    assert text.endswith(tail)


def test_a_long_stream_keeps_its_first_and_last_bytes():
    buffer = HeadTail(1_000)
    for number in range(100_000):
        buffer.add(b"%06d\n" % number)
    cut = buffer.cut()
    assert cut.text.startswith("000000\n")
    assert cut.text.endswith("099999\n")
    assert f"[… {cut.bytes_cut} bytes cut …]" in cut.text


def test_live_text_joins_split_characters_and_stops():
    live = LiveText(8)
    euro = "€".encode()
    assert live.text(b"a" + euro[:1]) == "a"
    assert live.text(euro[1:]) == "€"
    assert "not shown live" in live.text(b"0123456789")
    assert live.text(b"more") == ""


def test_structured_beside_text_when_both_fit():
    assert structured_result(["done"], {"n": 1}) == {
        "content": [{"type": "text", "text": "done"}],
        "is_error": False,
        "bytes_cut": 0,
        "structured": {"n": 1},
    }


def test_structured_alone_is_shown_as_text():
    assert structured_result([], {"n": 1})["content"] == [{"type": "text", "text": '{"n": 1}'}]


def test_structured_that_does_not_fit_is_counted_as_cut():
    result = structured_result(["x" * 80], {"n": "y" * 100}, bytes_max=120)
    assert "structured" not in result
    assert result["bytes_cut"] == 109
    result = structured_result(["x" * 500, "z" * 500], None, bytes_max=200)
    assert len(result["content"]) == 1
    assert result["bytes_cut"] > 700


def test_text_result_carries_more():
    assert text_result("no", True, exit_code=2) == {
        "content": [{"type": "text", "text": "no"}],
        "is_error": True,
        "bytes_cut": 0,
        "exit_code": 2,
    }
