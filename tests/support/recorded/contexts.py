"""Histories in which the model's context changes: turns, inputs that wait, compactions and rewinds of all kinds."""

import random
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from schemas.events import CONTEXT_TOO_LONG, InputWithdrawn, Lineage, ThreadRewound
from schemas.ids import ThreadKey
from schemas.transcript import Item, Transcript, inherited, is_settled, transcript_changes
from tests.support.recorded.histories import (
    EXECUTOR,
    KEY,
    USER,
    History,
    approved,
    cancel_requested,
    claimed,
    compacted,
    created,
    dispatched,
    finished,
    lost,
    proposed,
    resolved,
    step_failed,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)

KINDS = 8
ContextChoice = tuple[int, int]
"""What happens, and a number that says where it points."""
CONTEXT_CHOICES: SearchStrategy[list[ContextChoice]] = st.lists(
    st.tuples(st.integers(0, KINDS - 1), st.integers(0, 1_000)), min_size=1, max_size=16
)


def random_choices(rng: random.Random, count: int) -> list[ContextChoice]:
    return [(rng.randrange(KINDS), rng.randrange(1_000)) for _ in range(count)]


def context_history(choices: Sequence[ContextChoice], key: ThreadKey = KEY, lineage: Lineage | None = None) -> History:
    history = History(key)
    history.apply(created(lineage=lineage), USER)
    for number, (kind, pointing) in enumerate(choices):
        match kind:
            case 0:
                _turn_with_results(history, f"plain-{number}")
            case 1:
                history.ended_turn()
            case 2:
                history.apply(submitted(f"waits-{number}"), USER)
            case 3:
                _compact(history, pointing)
            case 4:
                _rewind(history, pointing)
            case 5:
                _turn_that_leaves_a_call_unknown(history, f"lost-{number}", is_resolved=pointing % 2 == 0)
            case 6:
                history.apply(submitted(f"taken back-{number}"), USER)
                history.apply(InputWithdrawn(input=f"taken back-{number}"), USER)
            case _:
                _turn_compacted_midway(history, f"long-{number}", pointing)
    return history


def forked_at(parent: History, seq: int) -> Lineage:
    depth = 0 if parent.state.lineage is None else parent.state.lineage.depth
    return Lineage(kind="fork", parent=parent.key.thread, seq=seq, chain=parent.states[seq].chain, depth=depth)


def settled_seqs(history: History) -> list[int]:
    """Where it can be forked."""
    return [seq for seq, state in enumerate(history.states) if seq > 0 and is_settled(state)]


def family(rng: random.Random, keys: Sequence[ThreadKey], moves: int) -> list[History]:
    """Each forked of one before it, the first of none."""
    histories: list[History] = []
    for key in keys:
        lineage = None
        if histories:
            parent = rng.choice(histories)
            lineage = forked_at(parent, rng.choice(settled_seqs(parent)))
        histories.append(context_history(random_choices(rng, moves), key, lineage))
    return histories


def context_as_of(histories: Sequence[History], history: History, seq: int) -> list[Item]:
    """By the pure functions alone, over all of its parents."""
    transcript = transcript_of(history, seq)
    if transcript.forked is not None:
        parent = next(each for each in histories if each.key.thread == transcript.forked.parent)
        transcript.inherited = inherited(parent.key.thread, context_as_of(histories, parent, transcript.forked.seq))
    return transcript.context()


def transcript_of(history: History, through: int | None = None) -> Transcript:
    """As of so many records, or of all."""
    transcript = Transcript()
    apply_to(transcript, history, 0, through)
    return transcript


def apply_to(transcript: Transcript, history: History, after: int, through: int | None = None) -> None:
    """The records with after < seq <= through."""
    end = len(history.records) if through is None else through
    for number in range(after, end):
        before, state = history.states[number], history.states[number + 1]
        transcript.apply(transcript_changes(before, state, history.records[number], history.verdicts[number]))


def _compact(history: History, pointing: int) -> None:
    state = history.state
    if state.base < state.seq:
        through = state.base + pointing % (state.seq - state.base)
        history.append(compacted(state, through or None))


def _rewind(history: History, pointing: int) -> None:
    if history.state.last_turn > 0:
        history.apply(ThreadRewound(to_turn=1 + pointing % history.state.last_turn), USER)


def _turn_with_a_call(history: History, name: str) -> str:
    history.apply(submitted(name), USER)
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "Let me see.", [proposed(0)]))
    call = next(reversed(history.state.calls))
    history.apply(approved(history.call(call)), USER)
    history.apply(dispatched(history.call(call)))
    history.apply(claimed(history.call(call)), EXECUTOR)
    return call


def _turn_with_results(history: History, name: str) -> None:
    call = _turn_with_a_call(history, name)
    history.apply(finished(history.call(call)), EXECUTOR)
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "Done."))
    history.apply(turn_ended(history.state))


def _turn_that_leaves_a_call_unknown(history: History, name: str, *, is_resolved: bool) -> None:
    call = _turn_with_a_call(history, name)
    history.apply(lost(history.call(call)))
    history.apply(cancel_requested(history.state), USER)
    history.apply(turn_ended(history.state, "aborted"))
    if is_resolved:
        history.apply(resolved(history.call(call)), USER)


def _turn_compacted_midway(history: History, name: str, pointing: int) -> None:
    call = _turn_with_a_call(history, name)
    history.apply(lost(history.call(call)))
    history.apply(resolved(history.call(call), "failed"), USER)
    if pointing % 2:
        history.apply(submitted(f"{name}, more", "steer"), USER)
        history.apply(step_started(history.state))
        history.apply(step_failed(history.state, retriable=False, kind=CONTEXT_TOO_LONG))
    _compact(history, pointing)
    history.apply(step_started(history.state))
    history.apply(step_finished(history.state, "It went wrong."))
    history.apply(turn_ended(history.state))
