"""When a thread that was set aside is read anew and reported: on a clock of the test's."""

import pytest

from schemas.ids import TenantId, ThreadId, ThreadKey
from services.chassis.following.quarantine import Pauses, Quarantine

KEY = ThreadKey(TenantId("acme"), ThreadId("t"))
PAUSES = Pauses(first_seconds=5, most_seconds=60, report_seconds=10)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (1_000, 60), (10**9, 60)]
)
def test_pauses_double_up_to_the_most(failures: int, seconds: float) -> None:
    assert PAUSES.after(failures) == seconds


def test_it_is_due_after_its_pause_and_healed_after_another() -> None:
    quarantine = Quarantine(PAUSES)
    quarantine.set_aside(KEY, 100)
    assert quarantine.due(104.9) == []
    assert quarantine.due(105) == [KEY]
    quarantine.refolded(KEY, 105)
    assert quarantine.due(109.9) == [] and len(quarantine) == 1
    assert quarantine.due(110) == [] and len(quarantine) == 0, "it is not due again, and forgotten"
    quarantine.set_aside(KEY, 200)
    assert quarantine.due(205) == [KEY], "a new trouble"


def test_who_fails_again_soon_waits_longer() -> None:
    quarantine = Quarantine(PAUSES)
    quarantine.set_aside(KEY, 0)
    quarantine.refolded(KEY, 5)
    quarantine.set_aside(KEY, 9)
    assert quarantine.due(18.9) == []
    assert quarantine.due(19) == [KEY]


def test_a_refold_that_cannot_be_yet_is_no_failure() -> None:
    quarantine = Quarantine(PAUSES)
    quarantine.set_aside(KEY, 0)
    for now in (5, 10, 15):
        assert quarantine.due(now) == [KEY]
        quarantine.postpone(KEY, now)
    quarantine.forget(KEY)
    assert quarantine.due(1_000) == []


def test_it_is_reported_at_once_and_again_for_as_long_as_it_is_set_aside() -> None:
    quarantine = Quarantine(PAUSES)
    quarantine.set_aside(KEY, 100)
    assert [report.seconds for report in quarantine.reports(101)] == [1]
    assert quarantine.reports(110) == []
    assert quarantine.reports(111) == [(KEY, 11)]
    quarantine.refolded(KEY, 115)
    assert quarantine.reports(130) == []
    quarantine.set_aside(KEY, 116)
    assert quarantine.reports(130) == [(KEY, 30)], "since the first failure"
