"""Compaction: when a summary replaces what the model was shown, and how the model is asked for it. Pure.

A request (`context.compaction_requested`) comes from a person, or from the runtime: before a step whose context has
passed its limit, or after a step that the model refused as too long. While the request stands, no step and no turn
begins. The model is asked at the next boundary, where no step is open and every call is settled, and only about records
that were read back: a summary of something that turns out to have no effect would be wrong for ever.

The answer becomes `context.compacted`. It counts only if the base of the context is still the same, so of two owners
that both write a summary one wins, and a rewind makes both void. If no try brings a summary,
`context.compaction_failed` ends the request and the thread goes on with its context as it was. Tries are counted in
memory; a new owner starts anew.

A conversation that is too long for the model is usually too long to be summed up by it, too. So a try that was too long
is followed by one about half of the conversation (`truncated_conversation`), and so on.
"""

from collections.abc import Sequence
from dataclasses import replace

from schemas.canonical import canonical_json
from schemas.events import (
    CONTEXT_TOO_LONG,
    ContextCompacted,
    ContextCompactionFailed,
    ContextCompactionRequested,
    Failure,
    Usage,
)
from schemas.state import ThreadState, Turn, unsettled_calls
from schemas.transcript import Item
from services.chassis.sanitize import sanitize_text
from services.runtime.deciding.decisions import (
    Append,
    CallModel,
    Decision,
    DropModelCall,
    LoadTranscript,
    LookAgain,
    Summarising,
    SummaryTries,
    World,
)
from services.runtime.deciding.limits import Limits
from services.runtime.deciding.truncated_conversation import truncated
from services.runtime.models.port import ModelAnswer, ModelFailure, ModelRequest, TranscriptItem

ERROR_CHARACTERS_MAX = 2_000
"""Characters of an error that are recorded."""
HALVINGS_MAX = 6
"""Tries with half the length of the one before. A model that does not take a sixty-fourth will not take less either."""

ASKED = """\
The conversation up to here is about to be replaced by a summary, and you will go on with the summary alone. Write it \
now, for yourself, and write nothing else. Do not call tools.

Say what the user has asked for, in the user's own words where they matter, and which of it is still to be done; what \
was done and found out, with the names, paths, numbers and exact texts that will be needed again; what was decided and \
why; what failed and must not be tried again; and what was to come next. Leave out what no longer matters.\
"""


def is_asked_for(state: ThreadState) -> bool:
    """Whether a summary has to be written before the model is asked anything else, and can be written now."""
    if not state.compaction_requested or state.status != "active":
        return False
    turn = state.turn
    if turn is None:
        return True
    is_open = turn.step is not None and turn.step.status == "open"
    return turn.cancelling is None and not is_open and not unsettled_calls(state, turn.turn)


def is_too_large(state: ThreadState, turn: Turn, limits: Limits) -> bool:
    """Whether the context has passed its limit, so the runtime asks for a summary before the next step."""
    return 0 < limits.context_tokens < state.context_tokens and may_be_asked_for(state, turn)


def may_be_asked_for(state: ThreadState, turn: Turn) -> bool:
    """Whether the runtime may ask for a summary in this turn. It asks no more once one has failed, or it would go on
    asking before every step.
    """
    return state.status == "active" and state.compaction_failed_turn != turn.turn


def request(state: ThreadState, turn: Turn) -> Append:
    return Append(ContextCompactionRequested(base=state.base, turn=turn.turn))


def advance(state: ThreadState, now_ms: int, limits: Limits, world: World) -> list[Decision]:
    """Move a standing request on: ask the model, wait for the next try, or end the request without a summary.

    A call under way that answers something else is dropped first.
    """
    calling = world.calling
    if isinstance(calling, Summarising) and (calling.requested, calling.base) == (state.compaction_seq, state.base):
        return []
    decisions: list[Decision] = [] if calling is None else [DropModelCall()]
    tries = world.tries if world.tries.requested == state.compaction_seq else SummaryTries(state.compaction_seq)
    if tries.halvings > HALVINGS_MAX:
        return [*decisions, _failed(state, CONTEXT_TOO_LONG, tries.error)]
    if tries.failures and (not tries.retriable or tries.failures >= limits.model_tries):
        return [*decisions, _failed(state, "model", tries.error)]
    if world.is_ahead:
        return decisions
    if tries.failures and now_ms < tries.retry_at_ms:
        return [*decisions, LookAgain(tries.retry_at_ms)]
    through_seq = _through_seq(state)
    items = 0 if through_seq is None else world.summed_up(through_seq)
    if items is None:
        return [*decisions, LoadTranscript()]
    if through_seq is None or items == 0:
        return [*decisions, _failed(state, "empty", "there is nothing that a summary could stand for")]
    attempt = tries.failures + 1
    calling_now = Summarising(state.compaction_seq, state.base, through_seq, attempt, tries.halvings)
    return [*decisions, CallModel(calling_now)]


def _through_seq(state: ThreadState) -> int | None:
    """Return the seq up to which a summary replaces the context: everything that was read back.

    But what people said, and no step has answered yet, stays in their own words. None if a summary has been written
    since then: it replaces everything before.
    """
    turn = state.turn
    if turn is None:
        return state.seq
    step = turn.step
    if turn.steps == 0:
        unanswered_seq = turn.started_seq
    elif step is not None and step.inputs:
        unanswered_seq = step.seq
    else:
        return state.seq
    return unanswered_seq - 1 if state.base < unanswered_seq else None


def _failed(state: ThreadState, kind: str, message: str) -> Append:
    error = Failure(kind=kind, message=sanitize_text(message)[:ERROR_CHARACTERS_MAX])
    return Append(ContextCompactionFailed(base=state.base, requested=state.compaction_seq, error=error))


def summed_up(items: Sequence[Item], through_seq: int) -> Sequence[Item]:
    """Return the items that a summary through that seq replaces; none if they are only an earlier summary.

    Inherited items always belong to them, because a fork's own items come after all that it inherited.
    """
    covered = [
        item for item in items if item.thread is not None or item.kind == "summary" or (item.place or 0) <= through_seq
    ]
    return () if all(item.kind == "summary" for item in covered) else covered


def asked_with(request: ModelRequest, items: Sequence[Item], calling: Summarising) -> ModelRequest:
    """Return the request for a summary of this context, made from the request for a step.

    The tools stay in it although none may be called: with the same beginning, the provider's cache applies. They are
    left out when room is short.
    """
    covered = summed_up(items, calling.through_seq)
    return replace(
        request,
        items=question(covered, calling.halvings),
        tools=() if calling.halvings else request.tools,
        tool_choice="none",
        is_summary=True,
    )


def question(items: Sequence[Item], halvings: int = 0) -> list[TranscriptItem]:
    """Return the items that the model is asked with: the conversation, or a shorter text of it, and the question."""
    contents: list[TranscriptItem] = [item.content for item in items]
    if halvings:
        contents = [_said(truncated(contents, halvings))]
    return [*contents, _said(ASKED)]


def _said(text: str) -> TranscriptItem:
    return {"kind": "message", "role": "user", "content": [{"type": "text", "text": text}]}


def to_summary(calling: Summarising, answer: ModelAnswer, bytes_max: int) -> ContextCompacted | ModelFailure:
    """Return the event of a summary, or a failure if the answer is unfit. Calls in the answer are ignored."""
    text = sanitize_text("\n\n".join([item.text for item in answer.items if item.kind == "text"])).strip()
    if not text:
        return ModelFailure("the model answered without a text", retriable=True)
    size = len(canonical_json(text))
    if size > bytes_max:
        return ModelFailure(f"the summary has {size} bytes, {bytes_max} are allowed", retriable=False)
    usage = answer.usage
    return ContextCompacted(
        base=calling.base,
        through_seq=calling.through_seq,
        summary=text,
        usage=Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        ),
    )


def after_failure(calling: Summarising, failure: ModelFailure, retry_at_ms: int) -> SummaryTries:
    """Return the tries after one more has failed."""
    tries = SummaryTries(
        calling.requested, calling.attempt, failure.retriable, retry_at_ms, failure.error, calling.halvings
    )
    if failure.too_long:  # the next try is shorter, so it need not wait
        return tries._replace(
            failures=calling.attempt - 1, retriable=True, retry_at_ms=0, halvings=calling.halvings + 1
        )
    return tries
