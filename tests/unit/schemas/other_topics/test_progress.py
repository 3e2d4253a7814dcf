import pytest

from schemas.other_topics.progress import (
    Delta,
    Heartbeat,
    Progress,
    Quarantine,
    ToolOutput,
    decode_progress,
    encode_progress,
    progress_kind,
)

EXAMPLES: list[Progress] = [
    Delta(turn=1, step=2, attempt=1, text="Hel\nlo ✓"),
    Delta(turn=1, step=2, attempt=1, reasoning="hm"),
    ToolOutput(call="1.2.0", attempt=1, text="…"),
    Heartbeat(call="1.2.0", attempt=3, claim="0d9b"),
    Quarantine(reason="fold failed"),
]


@pytest.mark.parametrize("progress", EXAMPLES)
def test_comes_back_as_it_went(progress: Progress) -> None:
    value, headers = encode_progress(progress)
    assert decode_progress(value) == progress
    assert progress_kind(headers) == progress.kind
    assert b"\n" not in value


def test_absent_fields_are_not_written() -> None:
    assert (
        encode_progress(EXAMPLES[0])[0] == '{"kind":"delta","turn":1,"step":2,"attempt":1,"text":"Hel\\nlo ✓"}'.encode()
    )


@pytest.mark.parametrize(
    "value",
    [None, b"", b"{", b"[]", b'{"kind":"delta"}', b'{"kind":"other"}', b"\xff", b'{"kind":"quarantine","reason":1}'],
)
def test_what_is_not_ours_is_none(value: bytes | None) -> None:
    assert decode_progress(value) is None


def test_a_record_without_kind_says_so() -> None:
    assert progress_kind(()) is None
    assert progress_kind((("other", b"x"),)) is None
