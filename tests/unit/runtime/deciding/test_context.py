from schemas.thread import fold
from schemas.transcript import Transcript, context_hash, transcript_changes
from services.runtime.deciding.context import window
from tests.support.recorded.histories import (
    USER,
    History,
    plain_turn,
    proposed,
    step_finished,
    step_started,
    submitted,
    turn_started,
)


def transcript_of(history: History) -> Transcript:
    transcript = Transcript()
    for place, record in enumerate(history.records):
        transcript.apply(
            transcript_changes(history.states[place], history.states[place + 1], record, history.verdicts[place])
        )
    return transcript


def test_the_context_is_what_the_transcript_shows() -> None:
    history = plain_turn(History())
    transcript = transcript_of(history)
    shown = window(transcript, (), history.state.seq)
    assert [item.kind for item in shown.items][:3] == ["message", "message", "tool_call"]
    assert shown.context.confirmed_seq == history.state.seq
    assert shown.context.items == len(shown.items)
    assert shown.context.hash == context_hash(transcript.context())


def test_what_was_decided_ahead_is_shown_and_the_transcript_stays_as_it_is() -> None:
    """The context decided ahead is the one that a reader finds once everything has been read back."""
    history = History().idle()
    history.apply(submitted("i1"), USER)
    history.apply(turn_started(history.state))
    history.apply(step_started(history.state))
    transcript = transcript_of(history)
    before = list(transcript.items)
    made = history.make(step_finished(history.state, "let me look", [proposed(0)]))
    after, verdict = fold(history.state, made.record)
    changes = transcript_changes(history.state, after, made.record, verdict)

    ahead = window(transcript, changes, history.state.seq)

    assert [item.kind for item in ahead.items] == ["message", "message", "tool_call"]
    assert transcript.items == before
    history.add(made)
    assert ahead.context.hash == window(transcript_of(history), (), history.state.seq).context.hash
