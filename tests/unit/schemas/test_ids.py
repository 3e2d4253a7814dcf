from uuid import uuid5

import pytest

from schemas.errors import HeaderError
from schemas.events import ToolCallLost, ToolCallStarted, service_event_id
from schemas.ids import (
    NAMESPACE_THREADLOG,
    TenantId,
    ThreadId,
    ThreadKey,
    call_id,
    derive,
    derive_command,
    derive_service_event,
    derive_thread,
    idempotency_key,
    is_name,
    parse_call_id,
    parse_event_id,
    parse_key,
)
from tests.support.recorded.histories import KEY


def test_keys_are_written_and_read():
    assert parse_key(b"acme/t-1") == KEY
    assert KEY.to_bytes() == str(KEY).encode() == b"acme/t-1"


@pytest.mark.parametrize("raw", [None, b"", b"acme", b"a b/c", b"\xff/t", b"acme/t/1", b"acme/t\n"])
def test_other_keys_are_refused(raw: bytes | None):
    with pytest.raises(HeaderError):
        parse_key(raw)


def test_ephemeral_threads_are_known_by_their_name():
    assert ThreadKey(TenantId("acme"), ThreadId("e-1")).ephemeral
    assert not KEY.ephemeral


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "0", "x" * 64])
def test_names(name: str):
    assert is_name(name)


@pytest.mark.parametrize("name", ["", ".a", "-a", "_a", "a/b", "a b", "é", "a\n", "x" * 65])
def test_what_is_no_name(name: str):
    assert not is_name(name)


def test_call_ids_are_written_and_read():
    assert call_id(3, 1, 0) == "3.1.0"
    assert parse_call_id("3.1.0") == (3, 1, 0)


@pytest.mark.parametrize("text", ["", "3.1", "0.1.0", "1.0.0", "1.1.-1", "1.1.00", "1.1.0 ", "1.1.0\n", "１.1.0"])
def test_what_is_no_call_id(text: str):
    assert parse_call_id(text) is None


def test_event_ids_have_one_form():
    text = derive("x")
    assert parse_event_id(text) == text
    for other in ("", text.upper(), text.replace("-", ""), f"{{{text}}}", text + "\n", "urn:uuid:" + text):
        assert parse_event_id(other) is None


@pytest.mark.parametrize("parts", [("a",), ("a", "b"), ("é", 7), ("",), ("x" * 10_000,)])
def test_derived_ids_are_uuid5(parts: tuple[str | int, ...]):
    name = "\x1f".join(f"{len(str(part))}:{part}" for part in parts)
    assert derive(*parts) == str(uuid5(NAMESPACE_THREADLOG, name))


def test_derived_ids_never_change():
    """They are in logs."""
    assert derive("a", 1) == "9b875a67-7bfb-57a9-a116-52daf87282e9"
    assert idempotency_key(KEY, "1.1.0") == "aa82eb26-fd85-52e9-9c84-b287a7a71c21"


def test_other_parts_give_other_ids():
    assert derive("a", "b") != derive("a\x1f1:b") != derive("ab")
    assert derive("1") == derive(1)


def test_each_kind_of_id_has_its_own_names():
    command = derive_command("acme", "ann", "POST /threads", "t-1", "key", "thread.created")
    assert command != derive_command("acme", "bob", "POST /threads", "t-1", "key", "thread.created")
    assert command != derive_thread("acme", "ann", "POST /threads", "key")
    assert is_name(derive_thread("acme", "ann", "POST /threads", "key"))


def test_a_services_event_is_known_by_what_it_means():
    lost = ToolCallLost(call="1.1.0", attempt=1, claim="c", evidence="silence")
    assert service_event_id(KEY, lost) == service_event_id(KEY, lost.model_copy(update={"evidence": "other"}))
    assert service_event_id(KEY, lost) != service_event_id(KEY, lost.model_copy(update={"claim": None}))
    started = ToolCallStarted(call="1.1.0", attempt=1, executor="e1#1", lease_seconds=30)
    assert service_event_id(KEY, started) != service_event_id(KEY, started.model_copy(update={"executor": "e1#2"}))


@pytest.mark.parametrize("meaning", [(), (1,), ("1.1.0", 2), ("a\x1f1:b",)])
def test_ids_of_service_events_are_derived_like_all_others(meaning: tuple[str | int, ...]):
    assert derive_service_event(KEY, "turn.ended", *meaning) == derive(
        "event", KEY.tenant, KEY.thread, "turn.ended", *meaning
    )
