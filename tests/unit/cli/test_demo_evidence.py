"""Each claim of the demo fails when what happened does not bear it out."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from schemas.codec import encode
from schemas.events import (
    Confirmed,
    Context,
    Event,
    StepFinished,
    StepStarted,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallStarted,
    TurnEnded,
)
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.cli.demo.evidence import Evidence, Kill, Logged, Seen, findings
from services.cli.demo.findings import holding, table
from services.cli.demo.repository import UnittestRun

KEY = ThreadKey(TenantId("demo"), ThreadId("t"))
HASH = "0" * 64
FAILED = UnittestRun(1, "…\n\nFAILED (failures=1)\n")
PASSED = UnittestRun(0, "…\n\nOK\n")

Break = Callable[[Evidence], Evidence]


def step(number: int, attempt: int = 1) -> StepStarted:
    return StepStarted(
        turn=1,
        step=number,
        attempt=attempt,
        follows=HASH,
        context=Context(confirmed_seq=1, items=1, hash=HASH),
        model="scripted",
        tools_hash=HASH,
        owner="0/a",
    )


def answer(number: int, attempt: int = 1) -> StepFinished:
    return StepFinished(turn=1, step=number, attempt=attempt, started=HASH, items=(), stop_reason="stop")


def call(name: str, executor: str) -> list[Event]:
    return [
        ToolCallDispatched(
            call=name,
            attempt=1,
            call_hash=HASH,
            tool="shell",
            pool="default",
            args={},
            effect="unsafe",
            last=True,
            deadline_ms=1,
            timeout_ms=1,
            idempotency_key=name,
        ),
        ToolCallStarted(call=name, attempt=1, executor=executor, lease_seconds=30),
        ToolCallFinished(call=name, attempt=1, claim=name, outcome="succeeded"),
    ]


END = TurnEnded(turn=1, follows=HASH, outcome="completed", confirmed=Confirmed(seq=1, chain=HASH))
EVENTS: list[Event] = [
    *(step(1), answer(1), *call("1.1.0", "0/a")),
    *(step(2), step(2, 2), answer(2, 2)),
    *(step(3), answer(3), *call("1.3.0", "0/b")),
    END,
]


def logged(events: list[Event]) -> list[Logged]:
    records = [encode(KEY, event, source="s", actor="service:s", time_ms=1).record for event in events]
    return [Logged(seq, record, "applied") for seq, record in enumerate(records, start=1)]


def happened(events: list[Event] | None = None) -> Evidence:
    log = logged(EVENTS if events is None else events)
    return Evidence(
        is_scripted=True,
        tests_before=FAILED,
        tests_after=PASSED,
        seen=[Seen(each.seq, str(each.record.id), each.effect) for each in log],
        connections=2,
        kills=[Kill("runtime", 2), Kill("tool-executor", 3)],
        log=log,
        shell_runs=["1.1.0", "1.3.0"],
        views_before={"events": (13, "x")},
        views_after={"events": (13, "x")},
        seconds=30.0,
    )


def without(*events: Event) -> list[Event]:
    return [event for event in EVENTS if event not in events]


BROKEN: list[tuple[str, Break]] = [
    ("the turn completed", lambda _: happened([*without(END), END.model_copy(update={"outcome": "failed"})])),
    ("the turn completed", lambda _: happened(without(END))),
    ("the repository's tests pass now", lambda good: replace(good, tests_after=FAILED)),
    ("the repository's tests pass now", lambda good: replace(good, tests_after=None)),
    ("the repository's tests pass now", lambda good: replace(good, tests_before=PASSED)),
    ("the client saw every seq once", lambda good: replace(good, seen=good.seen[1:])),
    ("the client saw every seq once", lambda good: replace(good, seen=[*good.seen, good.seen[-1]])),
    ("the client saw every seq once", lambda good: replace(good, connections=1)),
    ("each call was executed once", lambda good: replace(good, shell_runs=["1.1.0", "1.3.0", "1.3.0"])),
    ("each call was executed once", lambda good: replace(good, shell_runs=["1.1.0", "1.1.0"])),
    ("each call was executed once", lambda _: happened([*EVENTS, call("1.3.0", "0/b")[1]])),
    ("each call was executed once", lambda _: happened([*EVENTS, ToolCallLost(call="1.3.0", attempt=1, evidence="e")])),
    ("each call was executed once", lambda _: happened(without(call("1.3.0", "0/b")[2]))),
    ("the runtime died while a model answered", lambda good: replace(good, kills=good.kills[1:])),
    ("the runtime died while a model answered", lambda _: happened(without(step(2, 2)))),
    ("the tool-executor died between two calls", lambda good: replace(good, kills=good.kills[:1])),
    (
        "the tool-executor died between two calls",
        lambda good: replace(good, kills=[good.kills[0], Kill("tool-executor", 1)]),
    ),
    ("dropped and rebuilt, the views are equal", lambda good: replace(good, views_after={"events": (13, "y")})),
    ("dropped and rebuilt, the views are equal", lambda good: replace(good, views_after={})),
    ("seconds", lambda good: replace(good, seconds=120.0)),
]


def test_all_claims_hold_when_it_went_well():
    found = findings(happened())
    assert [finding.claim for finding in found if not finding.holds] == []
    assert holding(found)
    assert table(found).count("✓") == len(found)


@pytest.mark.parametrize(("claim", "broken"), BROKEN)
def test_a_claim_fails(claim: str, broken: Break):
    found = findings(broken(happened()))
    assert [finding.claim for finding in found if not finding.holds] == [claim]
    assert not holding(found)
    assert f"✗ {claim}" in table(found)


def test_what_a_real_model_did_not_bring_about_is_not_held_against_it():
    evidence = replace(happened(), is_scripted=False, kills=[], connections=1, shell_runs=[], seconds=500.0)
    found = findings(evidence)
    assert holding(found)
    assert sum(finding.holds is None for finding in found) == 4
    assert "not put to the test" in table(found)
