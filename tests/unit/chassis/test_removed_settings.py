from collections.abc import Iterator

import pytest

from reference.settings import own_settings, settings_classes
from services.chassis import removed_settings
from services.chassis.removed_settings import PREFIX, REMOVED, removed_in


@pytest.fixture
def one_removed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(removed_settings, "REMOVED", {"OLD_PAUSE_MS": "is always 2 ms"})
    yield


@pytest.mark.usefixtures("one_removed")
def test_a_removed_variable_that_is_still_set_is_named() -> None:
    assert removed_in(["PATH", "THREADLOG_INSTANCE", "THREADLOG_OLD_PAUSE_MS"]) == [
        "THREADLOG_OLD_PAUSE_MS is no longer read: it is always 2 ms"
    ]


@pytest.mark.usefixtures("one_removed")
def test_it_is_found_however_it_is_written() -> None:
    assert removed_in(["threadlog_old_pause_ms"]) == ["threadlog_old_pause_ms is no longer read: it is always 2 ms"]


@pytest.mark.usefixtures("one_removed")
def test_a_variable_of_another_program_is_not() -> None:
    assert removed_in(["OLD_PAUSE_MS", "THREADLOG_", "THREADLOG_OLD_PAUSE"]) == []


def test_nothing_that_is_read_is_called_removed() -> None:
    read = {setting.variable for kind in settings_classes() for setting in own_settings(kind)}
    assert read.isdisjoint(f"{PREFIX}{name}" for name in REMOVED)


def test_each_says_what_holds_now() -> None:
    assert [name for name, clause in REMOVED.items() if not clause.strip() or clause.endswith(".")] == []
