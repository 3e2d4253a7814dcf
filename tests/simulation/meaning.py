"""What must hold of the events that took effect, whoever they were appended by: that they mean what they say.

Each of these says what a rule of the fold is for, in words of its own: a rule that is missing is found by what comes of
it, not by the rule.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from schemas.codec import Record
from schemas.events import (
    AnswerText,
    InputSubmitted,
    StepFinished,
    StepStarted,
    ThreadConfigured,
    ThreadCreated,
    ToolCallApproved,
    ToolCallDispatched,
    ToolCallFinished,
    ToolCallLost,
    ToolCallResolved,
    ToolCallStarted,
    TurnCancelRequested,
    TurnEnded,
    TurnStarted,
)
from schemas.state import NOTHING, ThreadState
from schemas.thread import APPLIED
from schemas.tools import CLIENT_POOL, THREAD_POOL
from schemas.transcript import Transcript, transcript_changes
from tests.simulation.contexts import inherited_by
from tests.simulation.invariants import Broken, Run, invariant
from tests.support.worlds.services import Judged

Content: TypeAlias = Mapping[str, object]

SAID = frozenset({"message", "tool_call", "tool_result"})
"""Kinds of items that stay where they are once a turn has them; what a late result of an earlier turn adds, does not."""
USER = "user:"
CLAIMED_BY_DISPATCH = frozenset({CLIENT_POOL, THREAD_POOL})


def _applied(thread: Judged) -> Iterator[tuple[ThreadState, Record, ThreadState]]:
    """With the states before and after."""
    before = NOTHING
    for record, verdict, after in thread.records:
        if verdict.effect == "applied":
            yield before, record, after
        before = after


# What models are told


@invariant
def answers_were_given_to_what_was_said(run: Run) -> Iterator[Broken]:
    """An answer that took effect was given to all that was said up to its start, and to nothing else."""
    for key, thread in run.threads.items():
        transcript = Transcript(inherited=inherited_by(run.threads, key, thread.state.lineage))
        said: dict[str, list[Content]] = {}
        for before, record, after in _applied(thread):
            transcript.apply(transcript_changes(before, after, record, APPLIED))
            if isinstance(record.data, StepStarted):
                said[record.data_hash] = _said([item.content for item in transcript.context()])
            elif isinstance(record.data, StepFinished) and isinstance(record.data.items[0], AnswerText):
                heard = _said(run.model.heard[record.data.items[0].text])
                if record.data.started not in said:
                    yield Broken(f"#{after.seq} answers a start that did not take effect", key)
                elif heard != said[record.data.started]:
                    yield Broken(
                        f"#{after.seq} answers {_brief(heard)} and not {_brief(said[record.data.started])}", key
                    )


def _said(items: Sequence[Content]) -> list[Content]:
    return [item for item in items if item["kind"] in SAID]


def _brief(items: Sequence[Content]) -> str:
    return "; ".join(str(item.get("content") or item.get("call"))[:70] for item in items[-6:])


# Turns


@invariant
def completed_turns_end_on_an_answer(run: Run) -> Iterator[Broken]:
    """Without calls, and not once they are being cancelled."""
    for key, thread in run.threads.items():
        answer: StepFinished | None = None
        for before, record, after in _applied(thread):
            data = record.data
            if isinstance(data, StepFinished):
                answer = data
            elif isinstance(data, TurnEnded) and data.outcome == "completed":
                if answer is None or answer.turn != data.turn or answer.calls:
                    yield Broken(f"turn {data.turn} is completed by #{after.seq} without an answer", key)
                if before.turn is not None and before.turn.cancelling is not None:
                    yield Broken(f"turn {data.turn} is completed by #{after.seq}, though it was cancelled", key)


@invariant
def turns_follow_the_latest_settings(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        latest = 0
        for _, record, after in _applied(thread):
            if isinstance(record.data, ThreadCreated | ThreadConfigured):
                latest = after.seq
            elif isinstance(record.data, TurnStarted) and record.data.config != latest:
                yield Broken(f"turn {record.data.turn} follows #{record.data.config}, and #{latest} was there", key)


@invariant
def held_inputs_wait_for_another(run: Run) -> Iterator[Broken]:
    """What was queued when a recovery closed its turn."""
    for key, thread in run.threads.items():
        held: set[str] = set()
        for before, record, after in _applied(thread):
            data = record.data
            if isinstance(data, TurnCancelRequested) and data.reason == "recovery":
                held = {item.input for item in before.queue}
            elif isinstance(data, InputSubmitted):
                held = set()
            elif isinstance(data, TurnStarted) and held.intersection(data.inputs):
                yield Broken(f"turn {data.turn} is started by #{after.seq} from a held queue", key)


# Calls


@invariant
def claims_are_spoken_of_by_name(run: Run) -> Iterator[Broken]:
    """A result, or a loss, counts for the claim that it names; but the first result of a pure call always counts."""
    for key, thread in run.threads.items():
        claims: dict[str, str] = {}
        for before, record, after in _applied(thread):
            data = record.data
            if isinstance(data, ToolCallStarted) or (
                isinstance(data, ToolCallDispatched) and data.pool in CLAIMED_BY_DISPATCH
            ):
                claims[data.call] = record.id
            elif isinstance(data, ToolCallFinished) and before.calls[data.call].effect == "pure":
                continue
            elif isinstance(data, ToolCallLost) and before.calls[data.call].status != "running":
                continue  # nobody has claimed it
            elif isinstance(data, ToolCallFinished | ToolCallLost) and data.claim != claims.get(data.call):
                yield Broken(f"#{after.seq} speaks of a claim of call {data.call} that is not the last", key)


@invariant
def people_resolve_what_they_saw(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        attempts: dict[str, int] = {}
        for _, record, after in _applied(thread):
            data = record.data
            if isinstance(data, ToolCallDispatched):
                attempts[data.call] = data.attempt
            elif isinstance(data, ToolCallResolved) and data.attempt != attempts[data.call]:
                yield Broken(f"#{after.seq} resolves attempt {data.attempt} of call {data.call}, not the last", key)


@invariant
def what_has_effects_was_approved_by_people(run: Run) -> Iterator[Broken]:
    """Where the thread's policy says so."""
    for key, thread in run.threads.items():
        ran = {each.call: each.tool for each in run.world.ledger.runs if each.thread == str(key)}
        granted: list[ToolCallApproved] = []
        approved: set[str] = set()
        policies: dict[str, str] = {}
        for before, record, _ in _applied(thread):
            data = record.data
            if isinstance(data, ToolCallApproved) and before.turn is not None:
                policies[data.call] = before.turn.config.approval
                by_people = record.actor.startswith(USER)
                if by_people and data.scope != "call":
                    granted.append(data)
                call = before.calls[data.call]
                if by_people or any(_grants(grant, call.tool, call.call_hash) for grant in granted):
                    approved.add(data.call)
        for name, tool in ran.items():
            policy = policies.get(name)
            if (policy == "always" or (policy == "on_effect" and tool != "pure")) and name not in approved:
                yield Broken(f"call {name}, {tool}, ran though nobody approved it", key)


def _grants(grant: ToolCallApproved, tool: str, call_hash: str) -> bool:
    in_force = grant.edited.call_hash if grant.edited is not None else grant.call_hash
    return grant.tool == tool if grant.tool is not None else in_force == call_hash
