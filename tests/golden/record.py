"""Recorded histories: `python -m tests.golden.record` writes each of `HISTORIES` as records beside this file, with what
they folded to. A recorded history never changes; a new fold that gives it another meaning raises `FOLD_VERSION`, and
only then is the expectation written again. `python -m tests.golden.record NAME …` writes only these.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import JsonValue

from schemas.codec import Encoded, Record, decode
from schemas.events import (
    Edited,
    InputWithdrawn,
    PlanApproved,
    PlanProposed,
    Task,
    TaskUpdated,
    ThreadArchived,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
)
from schemas.ids import derive, parse_key
from schemas.state import FOLD_VERSION, NOTHING, ThreadState, dump_state
from schemas.thread import fold
from schemas.transcript import Transcript, transcript_changes
from tests.support.recorded.histories import (
    EXECUTOR,
    IMPORTER,
    USER,
    History,
    approval_requested,
    approved,
    cancel_requested,
    claimed,
    compacted,
    created,
    denied,
    dispatched,
    finished,
    lost,
    plain_turn,
    proposed,
    resolved,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_recovered,
    turn_started,
)

FOLDER = Path(__file__).parent / "histories"


def plain() -> History:
    return plain_turn(
        plain_turn(History(), result="short"), calls=1, result={"exit_status": 0, "output": "é \U0001f600"}
    )


def people() -> History:
    """Asked, edited, denied, cancelled; steering, withdrawing, commands twice."""
    log = History().idle()
    command = log.make(submitted("i1"), USER, derive("key"))
    log.add(command)
    log.add(command)
    log.append(submitted("other"), USER, derive("key"))
    log.apply(turn_started(log.state))
    log.apply(submitted("s", "steer"), USER)
    log.apply(submitted("w"), USER)
    log.apply(InputWithdrawn(input="w"), USER)
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, calls=[proposed(index) for index in range(3)]))
    zero, one, two = log.state.calls.values()
    log.apply(approval_requested(zero))
    log.apply(approved(zero, edited=Edited(args={"command": "ls"}, call_hash="1" * 64), scope="thread"), USER)
    log.append(approved(zero, by="user:bob"), "user:bob")
    log.apply(denied(one), USER)
    log.apply(dispatched(log.call(zero.call)))
    log.apply(claimed(log.call(zero.call)), EXECUTOR)
    log.apply(cancel_requested(log.state), USER)
    log.append(approved(two), USER)
    log.apply(finished(log.call(zero.call), "cancelled"), EXECUTOR)
    log.apply(turn_ended(log.state, "aborted"))
    return log


def crashes() -> History:
    """Owners and executors die: attempts, a handover, lost calls of each class, an unknown one, a recovery."""
    log = History().in_step()
    log.apply(step_failed(log.state, handed_over=True))
    log.apply(step_started(log.state, owner="B"))
    log.apply(step_failed(log.state))
    log.apply(step_started(log.state, owner="B"))
    log.apply(turn_recovered(log.state, "C"))
    log.apply(step_finished(log.state, calls=[proposed(index) for index in range(3)]))
    for name, effect in zip(list(log.state.calls), ("pure", "idempotent", "unsafe"), strict=True):
        log.apply(approved(log.call(name), by="policy:never"))
        log.apply(dispatched(log.call(name), effect))
        log.apply(claimed(log.call(name)), EXECUTOR)
        log.append(claimed(log.call(name), "E2"), EXECUTOR)
        log.apply(lost(log.call(name)))
    pure, idempotent, unsafe = log.state.calls
    proof = log.make(finished(log.call(unsafe)), EXECUTOR)
    log.apply(resolved(log.call(unsafe), "again"), USER)
    log.apply(dispatched(log.call(unsafe)))
    log.add(proof)
    log.apply(dispatched(log.call(pure), "pure"))
    log.apply(finished(log.call(pure), claim="late", attempt=1), EXECUTOR)
    log.apply(dispatched(log.call(idempotent), "idempotent", last=True))
    log.apply(claimed(log.call(idempotent), "E3"), EXECUTOR)
    log.apply(submitted("i2"), USER)
    log.apply(cancel_requested(log.state, "recovery"))
    log.apply(lost(log.call(idempotent)))
    log.apply(turn_ended(log.state, "interrupted"))
    log.append(turn_started(log.state))
    log.apply(resolved(log.call(idempotent), "failed"), USER)
    return log


def two_owners() -> History:
    """B's answers come after A's: settings in between, another answer, a predicted chain."""
    log = History().idle()
    log.apply(submitted("i1"), USER)
    early = log.make(turn_started(log.state))
    log.apply(ThreadConfigured(patch={"model": "other", "limits": {"steps_per_turn": 5}}), USER)
    log.add(early)
    log.apply(turn_started(log.state))
    log.apply(step_started(log.state, owner="A"))
    b = log.fork()
    answers = [b.apply(step_finished(b.state, "B is done")), b.apply(turn_ended(b.state))]
    log.apply(step_finished(log.state, "A looks", [proposed(0)]))
    for made in answers:
        log.add(made)
    log.apply(denied(log.only_call))
    log.apply(step_started(log.state, owner="A"))
    a = log.fork()
    ends = [a.apply(step_finished(a.state, "A is done")), a.apply(turn_ended(a.state))]
    log.add(ends[0])
    log.apply(submitted("i2"), USER)
    log.add(ends[1])
    return log


def context() -> History:
    log = History().ended_turn().ended_turn()
    log.apply(compacted(log.state))
    log.ended_turn()
    log.apply(ThreadRewound(to_turn=1), USER)
    log.ended_turn()
    log.apply(compacted(log.state, log.state.base))
    log.ended_turn("failed")
    log.apply(PlanProposed(plan_version=1, tasks=(Task(id="a", title="A"), Task(id="b", title="B", depends_on=("a",)))))
    log.apply(PlanApproved(plan_version=1, by=USER), USER)
    log.apply(TaskUpdated(plan_version=1, task="a", status="running", child="t-2"))
    log.apply(ThreadCloseRequested(), USER)
    log.apply(ThreadClosed())
    log.append(ThreadArchived(), USER)
    return log


def imported() -> History:
    log = History()
    log.apply(created(importing=True), IMPORTER)
    log.apply(ThreadImportStarted(source="s"), IMPORTER)
    log.apply(submitted("i1"), IMPORTER)
    log.append(submitted("live"), USER)
    log.apply(turn_started(log.state), IMPORTER)
    log.apply(step_started(log.state), IMPORTER)
    log.apply(step_finished(log.state, "looks", [proposed(0)]), IMPORTER)
    log.apply(submitted("i2"), IMPORTER)
    log.apply(ThreadImportEnded(source="s"), IMPORTER)
    log.append(submitted("late"), IMPORTER)
    log.apply(resolved(log.only_call, "abandoned"), USER)
    log.in_turn("i3")
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "goes on"))
    log.apply(turn_ended(log.state))
    return log


def undecodable() -> History:
    """A record with other bytes than were hashed, a newer version, a type that is not ours."""
    log = History().in_turn()
    for change in (_altered, _newer, _foreign):
        made = change(log.make(turn_recovered(log.state)))
        record = decode(log.key.to_bytes(), made.headers, made.value, 0, made.record.time_ms)
        assert isinstance(record, Record)
        log.add(made._replace(record=record))
    log.apply(cancel_requested(log.state), USER)
    log.apply(turn_ended(log.state, "aborted"))
    return log


def _altered(made: Encoded) -> Encoded:
    return made._replace(value=made.value.replace(b"answer", b"ANSWER"))


def _newer(made: Encoded) -> Encoded:
    return _with_type(made, b"dev.threadlog.turn.recovered.v9")


def _foreign(made: Encoded) -> Encoded:
    return _with_type(made, b"com.example.order.placed")


def _with_type(made: Encoded, ce_type: bytes) -> Encoded:
    headers = dict(made.headers) | {"ce_type": ce_type}
    return made._replace(headers=tuple(headers.items()))


HISTORIES: Mapping[str, Callable[[], History]] = {
    "plain": plain,
    "people": people,
    "crashes": crashes,
    "two_owners": two_owners,
    "context": context,
    "imported": imported,
    "undecodable": undecodable,
}


def lines_of(history: History) -> str:
    lines = [
        {
            "key": str(history.key),
            "offset": record.offset,
            "timestamp_ms": made.record.time_ms,
            "headers": {name: raw.decode() for name, raw in made.headers},
            "value": made.value.decode(),
        }
        for made, record in zip(history.encoded, history.records, strict=True)
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def folded(lines: str) -> dict[str, JsonValue]:
    """What a recorded history comes to, as a reader sees it."""
    state: ThreadState = NOTHING
    transcript, effects = Transcript(), []
    for line in map(json.loads, lines.splitlines()):
        headers = tuple((name, text.encode()) for name, text in line["headers"].items())
        record = decode(line["key"].encode(), headers, line["value"].encode(), line["offset"], line["timestamp_ms"])
        assert isinstance(record, Record)
        assert record.key == parse_key(line["key"].encode())
        before = state
        state, verdict = fold(before, record)
        transcript.apply(transcript_changes(before, state, record, verdict))
        effects.append(f"{record.kind}: {verdict.effect}")
    context: list[JsonValue] = [item.content for item in transcript.context()]
    return {
        "fold_version": FOLD_VERSION,
        "effects": list(effects),
        "state": json.loads(dump_state(state)),
        "context": context,
        "items": len(transcript.items),
    }


def write(names: list[str]) -> None:
    for name in names or HISTORIES:
        lines = lines_of(HISTORIES[name]())
        (FOLDER / f"{name}.jsonl").write_text(lines)
        (FOLDER / f"{name}.expected.json").write_text(json.dumps(folded(lines), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(sys.argv[1:])
