"""An ephemeral thread is closed when its time is over."""

from dataclasses import replace

from schemas.events import ThreadClosed, ThreadCloseRequested, TurnEnded
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.runtime.deciding.decisions import LookAgain
from tests.support.recorded import deciding
from tests.support.recorded.deciding import appended, decided
from tests.support.recorded.histories import USER, History, created, submitted, turn_started

LIMITS = replace(deciding.LIMITS, ephemeral_seconds=60)


def ephemeral() -> History:
    log = History(ThreadKey(TenantId("acme"), ThreadId("e-1")))
    log.apply(created(), USER)
    return log


def test_an_idle_one_is_looked_at_again_when_its_time_is_over():
    log = ephemeral()
    assert decided(log, limits=LIMITS) == [LookAgain(log.state.created_ms + 60_000)]
    closing = appended(log, ThreadCloseRequested, after_seconds=60, limits=LIMITS)
    assert closing.reason == "an ephemeral thread lives 60 s"
    appended(log, ThreadClosed, after_seconds=60, limits=LIMITS)


def test_its_open_turn_is_aborted():
    log = ephemeral()
    log.apply(submitted("i1"), USER)
    log.apply(turn_started(log.state))
    appended(log, ThreadCloseRequested, after_seconds=60, limits=LIMITS)
    assert appended(log, TurnEnded, after_seconds=60, limits=LIMITS).outcome == "aborted"
    appended(log, ThreadClosed, after_seconds=60, limits=LIMITS)
    assert decided(log, after_seconds=61, limits=LIMITS) == []


def test_other_threads_live_on():
    assert decided(History().idle(), after_seconds=10**6, limits=LIMITS) == []
