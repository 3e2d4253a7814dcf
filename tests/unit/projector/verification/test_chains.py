"""What a log says of itself: its offsets, and the contexts that its steps name."""

from typing import Any

import pytest

from schemas.events import Context
from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.state import CHAIN_START
from schemas.topics import THREAD_EVENTS
from schemas.transcript import context_hash, inherited
from services.chassis.clock import SystemClock
from services.chassis.log.port import Incoming, Outgoing, TopicPartition
from services.projector.verification.chains import Contexts, Offsets, chain_at
from services.projector.verification.report import Finding, Report
from services.projector.verification.verify import VerifyError, accepted_of
from tests.support.recorded.contexts import context_as_of, forked_at
from tests.support.recorded.histories import (
    KEY,
    USER,
    History,
    created,
    plain_turn,
    step_started,
    submitted,
    turn_started,
)
from tests.support.recorded.walks import as_read
from tests.support.simulated.log import SimulatedBroker
from tests.support.worlds.verification import outgoing, whole_turn

TP = TopicPartition(THREAD_EVENTS.name, 0)


def record_at(offset: int) -> Incoming:
    return Incoming(TP.topic, TP.partition, offset, 0, b"a/b", b"{}", ())


@pytest.mark.parametrize(
    ("begin", "offsets", "end", "found"),
    [
        (0, [0, 1, 2], 3, None),
        (5, [5, 6], 7, None),
        (0, [], 0, None),
        (0, [0, 2], 3, "offset 1 is not in partition 0 of thread-events"),
        (0, [3], 4, "offsets 0 to 2 are not in partition 0 of thread-events"),
        (0, [0], 2, "offset 1 is not in partition 0 of thread-events"),
    ],
)
def test_gaps(begin: int, offsets: list[int], end: int, found: str | None) -> None:
    seen = Offsets({TP: begin})
    for offset in offsets:
        seen.see(record_at(offset))
    seen.end({TP: end})
    assert [gap.what for gap in seen.gaps] == ([] if found is None else [found])
    assert (seen.records, seen.gap_count) == (len(offsets), 0 if found is None else 1)


def contexts_of(history: History) -> list[Finding]:
    contexts = Contexts(KEY)
    for record in as_read(history):
        contexts.see(record)
    return contexts.findings


def test_steps_that_name_what_the_thread_came_to_are_fine() -> None:
    assert contexts_of(whole_turn(whole_turn(History()))) == []


def test_a_step_that_names_another_context_is_found() -> None:
    history = History()
    whole_turn(history)
    plain_turn(history)  # its steps name the context of nothing
    findings = contexts_of(history)
    assert len(findings) == 2 and findings[0].check == "context"
    assert findings[0].what.startswith("step 2.1 at seq ") and "asked with 0 items" in findings[0].what


def test_what_others_wrote_meanwhile_is_not_held_against_a_step() -> None:
    """The runtime had not read back what a person wrote between: its context may lack it."""
    history = plain_turn(History())
    history.apply(submitted("i2"), USER)
    history.apply(turn_started(history.state))
    [*_, late] = contexts_of(_with_step(history, confirmed_seq=1))
    assert late.what.startswith("step 1.")


def _with_step(history: History, confirmed_seq: int) -> History:
    started = step_started(history.state)
    context = started.context.model_copy(update={"confirmed_seq": confirmed_seq})
    history.apply(started.model_copy(update={"context": context}))
    return history


async def contexts_of_a_fork(parent: History, fork: History) -> list[Finding]:
    broker = SimulatedBroker({THREAD_EVENTS.name: 1}, SystemClock())
    log = broker.connect("test")
    await log.appender.append(TP.topic, 0, [*outgoing(parent), *outgoing(fork)])
    contexts = Contexts(fork.key)
    await contexts.open(log)
    for record in as_read(fork):
        contexts.see(record)
    await log.close()
    return contexts.findings


async def test_the_steps_of_a_fork_name_what_it_inherits_too() -> None:
    parent = plain_turn(History())
    key = ThreadKey(KEY.tenant, ThreadId("fork"))
    seq = parent.state.seq
    for named, found in ((context_as_of([parent], parent, seq), False), ([], True)):
        fork = History(key)
        fork.apply(created(lineage=forked_at(parent, seq)), USER)
        fork.apply(submitted("i1"), USER)
        fork.apply(turn_started(fork.state))
        shown = [*inherited(parent.key.thread, named), *context_as_of([parent], fork, fork.state.seq)[-1:]]
        started = step_started(fork.state)
        context = Context(confirmed_seq=fork.state.seq, items=len(shown), hash=context_hash(shown))
        fork.apply(started.model_copy(update={"context": context}))
        findings = await contexts_of_a_fork(parent, fork)
        assert [finding.check for finding in findings] == (["context"] if found else [])


async def test_a_fork_of_what_the_log_does_not_hold_is_found_and_its_steps_are_not_judged() -> None:
    parent = plain_turn(History())
    fork = History(ThreadKey(KEY.tenant, ThreadId("fork")))
    lineage = forked_at(parent, 1).model_copy(update={"seq": parent.state.seq + 1})
    fork.apply(created(lineage=lineage), USER)
    plain_turn(fork)
    [finding] = await contexts_of_a_fork(parent, fork)
    assert finding.check == "lineage"
    assert "cannot be told" in finding.what


async def test_the_chain_at_a_seq_comes_from_the_log() -> None:
    broker = SimulatedBroker({THREAD_EVENTS.name: 1}, SystemClock())
    log = broker.connect("test")
    history = plain_turn(History())
    await log.appender.append(TP.topic, 0, [Outgoing(b"a/b", b"{}"), *outgoing(history)])
    for seq in (1, 5, history.state.seq):
        assert await chain_at(log, TP, KEY, seq) == history.states[seq].chain
    assert await chain_at(log, TP, KEY, 0) == CHAIN_START
    assert await chain_at(log, TP, KEY, history.state.seq + 1) is None
    assert await chain_at(log, TP, ThreadKey(TenantId("x"), ThreadId("y")), 1) is None
    await log.close()


def test_a_report_names_the_first_of_each_kind_and_counts_the_rest() -> None:
    report = Report(3)
    assert report.to_json()["ok"] is True and report.first is None
    findings: list[Any] = [
        Finding("hash", "a"),
        Finding("hash", "b"),
        Finding("view", "c", view="events", key={"seq": 1}),
    ]
    for finding in findings:
        report.add(finding)
    report.add(Finding("view", "d", view="events"), 4)
    report.add(Finding("view", "e", view="turns"))
    assert [finding.what for finding in report.firsts] == ["a", "c", "e"]
    assert report.findings == 8
    told = report.to_json()
    assert (told["ok"], told["by_check"], told["by_view"]) == (False, {"hash": 2, "view": 6}, {"events": 5, "turns": 1})
    assert told["first"] == findings[0].to_json() and findings[2].to_json()["key"] == {"seq": 1}


def test_records_to_accept_are_named_by_position() -> None:
    assert list(accepted_of(["3:41", "0:0"])) == [(3, 41), (0, 0)]
    for text in ("3", "3:", "a:1", "-1:2"):
        with pytest.raises(VerifyError, match="partition:offset"):
            accepted_of([text])
