"""Each claim of the demo fails when what happened does not bear it out."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from demo.evidence import SECOND_PERSON, Evidence, Kill, Logged, Seen, findings
from demo.findings import holding, table
from demo.imported import TOOLS, GoneOn
from demo.repository import UnittestRun
from schemas.codec import encode
from schemas.events import (
    Confirmed,
    Context,
    Event,
    InputSubmitted,
    StepFinished,
    StepStarted,
    TextItem,
    ToolCallApprovalRequested,
    ToolCallApproved,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnEnded,
)
from schemas.ids import TenantId, ThreadId, ThreadKey

KEY = ThreadKey(TenantId("demo"), ThreadId("t"))
HASH = "0" * 64
FAILED = UnittestRun(1, "…\n\nFAILED (failures=1)\n")
PASSED = UnittestRun(0, "…\n\nOK\n")

Break = Callable[[Evidence], Evidence]


def step(number: int, attempt: int = 1, *inputs: str) -> StepStarted:
    return StepStarted(
        turn=1,
        step=number,
        attempt=attempt,
        follows=HASH,
        inputs=inputs,
        context=Context(confirmed_seq=1, items=1, hash=HASH),
        model="scripted",
        tools_hash=HASH,
        owner="0/a",
    )


def answer(number: int, attempt: int = 1) -> StepFinished:
    return StepFinished(turn=1, step=number, attempt=attempt, started=HASH, items=(), stop_reason="stop")


def call(name: str, executor: str, tool: str = "shell") -> list[Event]:
    return [
        ToolCallDispatched(
            call=name,
            attempt=1,
            call_hash=HASH,
            tool=tool,
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


STEERING = InputSubmitted(input="said", items=(TextItem(text="that, too"),), mode="steer", expected_turn=1)
REQUESTED = ToolCallApprovalRequested(call="1.4.0", call_hash=HASH, reason="policy")
APPROVED = ToolCallApproved(call="1.4.0", call_hash=HASH, by=SECOND_PERSON)
LOST = ToolCallLost(call="1.4.0", attempt=1, claim="1.4.0", evidence="e")
RESOLVED = ToolCallResolved(call="1.4.0", attempt=1, decision="succeeded", note="it is there")
INTERRUPTED = [REQUESTED, APPROVED, *call("1.4.0", "0/b", "publish_release")[:2], LOST, RESOLVED]
END = TurnEnded(turn=1, follows=HASH, outcome="completed", confirmed=Confirmed(seq=1, chain=HASH))
EVENTS: list[Event] = [
    *(step(1), answer(1), *call("1.1.0", "0/a")),
    *(step(2), STEERING, step(2, 2), answer(2, 2)),
    *(step(3, 1, "said"), answer(3), *call("1.3.0", "0/b")),
    *(step(4), answer(4), *INTERRUPTED),
    *(step(5), answer(5), END),
]


def logged(events: list[Event]) -> list[Logged]:
    records = [encode(KEY, event, source="s", actor=actor_of(event), time_ms=1).record for event in events]
    return [Logged(seq, record, "applied") for seq, record in enumerate(records, start=1)]


def actor_of(event: Event) -> str:
    is_of_people = isinstance(event, InputSubmitted | ToolCallApproved | ToolCallResolved)
    return SECOND_PERSON if is_of_people else "service:s"


def happened(events: list[Event] | None = None) -> Evidence:
    log = logged(EVENTS if events is None else events)
    return Evidence(
        is_scripted=True,
        tests_before=FAILED,
        tests_after=PASSED,
        seen=[Seen(each.seq, str(each.record.id), each.effect) for each in log],
        connections=2,
        kills=[Kill("runtime", 2), Kill("tool-executor", 3)],
        interrupted="1.4.0",
        steering="said",
        approvals_listed=["1.4.0"],
        told_of_decisions={"1.4.0": SECOND_PERSON},
        unknown_listed=["1.4.0"],
        released=["1.4.0"],
        log=log,
        shell_runs=["1.1.0", "1.3.0"],
        views_before={"events": (13, "x")},
        views_after={"events": (13, "x")},
        gone_on=[GoneOn(tool, "t", 1, 1, "completed", "an answer") for tool in TOOLS],
        verified=(0, "the views equal the log"),
        seconds=30.0,
    )


def without(*events: Event) -> list[Event]:
    return [event for event in EVENTS if event not in events]


def exchanged(*pairs: Event) -> list[Event]:
    """Each of the first, third … is the next one instead."""
    instead = list(zip(pairs[::2], pairs[1::2], strict=True))
    return [next((new for old, new in instead if old == event), event) for event in EVENTS]


APPROVAL = "a call waited for a person's approval"
UNKNOWN = "an unknown outcome was settled by a person"

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
    ("the open turn was steered", lambda good: replace(good, steering=None)),
    ("the open turn was steered", lambda _: happened(exchanged(step(3, 1, "said"), step(3)))),
    ("the open turn was steered", lambda _: happened(exchanged(step(4), step(4, 1, "said")))),
    (
        "the open turn was steered",
        lambda _: happened([*exchanged(step(3, 1, "said"), step(3), step(4), step(4, 1, "said"))]),
    ),
    (APPROVAL, lambda good: replace(good, approvals_listed=[])),
    (APPROVAL, lambda good: replace(good, told_of_decisions={})),
    (APPROVAL, lambda _: happened(without(REQUESTED))),
    (APPROVAL, lambda _: happened(exchanged(APPROVED, APPROVED.model_copy(update={"by": "policy:never"})))),
    (APPROVAL, lambda _: happened([*without(APPROVED), APPROVED])),
    (UNKNOWN, lambda good: replace(good, unknown_listed=[])),
    (UNKNOWN, lambda good: replace(good, released=[])),
    (UNKNOWN, lambda good: replace(good, released=["1.4.0", "1.4.0"])),
    (UNKNOWN, lambda _: happened(exchanged(RESOLVED, RESOLVED.model_copy(update={"decision": "failed"})))),
    ("dropped and rebuilt, the views are equal", lambda good: replace(good, views_after={"events": (13, "y")})),
    ("dropped and rebuilt, the views are equal", lambda good: replace(good, views_after={})),
    ("imported sessions were continued", lambda good: replace(good, gone_on=good.gone_on[:1])),
    (
        "imported sessions were continued",
        lambda good: replace(good, gone_on=[replace(each, outcome="failed") for each in good.gone_on]),
    ),
    ("threadlog verify --all", lambda good: replace(good, verified=(1, "views differ"))),
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
    evidence = replace(
        evidence, steering=None, interrupted=None, log=logged([step(1), answer(1), *call("1.1.0", "0/a"), END])
    )
    evidence = replace(evidence, seen=[Seen(each.seq, str(each.record.id), each.effect) for each in evidence.log])
    found = findings(evidence)
    assert holding(found)
    assert sum(finding.holds is None for finding in found) == 7
    assert "not put to the test" in table(found)
