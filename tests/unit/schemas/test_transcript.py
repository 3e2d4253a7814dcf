import pytest

from schemas.events import (
    AnswerReasoning,
    AnswerText,
    ContextCompacted,
    Edited,
    Event,
    InputWithdrawn,
    PlanApproved,
    PlanProposed,
    ProposedCall,
    SkillLoaded,
    StepFinished,
    Task,
    ThreadCloseRequested,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
)
from schemas.transcript import Item, Transcript, context_hash, transcript_changes
from tests.support.recorded.histories import (
    EXECUTOR,
    IMPORTER,
    NO_HASH,
    USER,
    History,
    approval_expired,
    approval_requested,
    approved,
    cancel_requested,
    claimed,
    compacted,
    denied,
    dispatched,
    finished,
    lost,
    plain_turn,
    proposed,
    resolved,
    step_finished,
    step_started,
    submitted,
    turn_ended,
    turn_started,
)


def transcript_of(log: History) -> Transcript:
    transcript = Transcript()
    for place, record in enumerate(log.records):
        before, after = log.states[place : place + 2]
        transcript.apply(transcript_changes(before, after, record, log.verdicts[place]))
    return transcript


def context_of(log: History) -> list[Item]:
    return transcript_of(log).context()


def kinds(items: list[Item]) -> list[str]:
    return [item.kind for item in items]


def results_of(log: History) -> list[tuple[str, object, object]]:
    return [
        (item.kind, item.content["outcome"], item.content["content"])
        for item in transcript_of(log).items
        if item.kind in {"tool_result", "resolution"}
    ]


def test_a_plain_turn():
    log = plain_turn(History())
    items = context_of(log)
    assert kinds(items) == ["message", "message", "tool_call", "tool_call", "tool_result", "tool_result", "message"]
    assert items[0].content == {
        "kind": "message",
        "role": "user",
        "content": [{"type": "text", "text": "Make the tests pass."}],
    }
    assert (items[0].turn, items[0].step, items[0].place, items[0].input) == (1, None, 3, "i1")
    assert items[2].content == {"kind": "tool_call", "call": "1.1.0", "tool": "shell", "args": {"command": "run 0"}}
    assert items[4].content == {
        "kind": "tool_result",
        "call": "1.1.0",
        "tool": "shell",
        "outcome": "succeeded",
        "content": "x" * 800,
    }
    assert [(item.seq, item.part) for item in items[1:4]] == [(5, 0), (5, 1), (5, 2)]
    assert len({item.digest for item in items}) == len(items)
    assert context_hash(items) != context_hash(items[1:]) != context_hash([])


def test_answers_keep_what_providers_want_back():
    log = History().in_step()
    call = ProposedCall(index=0, tool="t", args={}, call_hash="0" * 64, provider_id="p1", malformed="{oops")
    answer = StepFinished(
        **{
            **step_finished(log.state).model_dump(exclude={"items", "calls"}),
            "items": (AnswerReasoning(text="hm", provider={"id": "r1"}), AnswerText(text="so", provider={"id": "m1"})),
            "calls": (call,),
        }
    )
    log.apply(answer)
    reasoning, text, proposed_call = context_of(log)[1:]
    assert reasoning.content == {"kind": "reasoning", "text": "hm", "provider": {"id": "r1"}}
    assert text.content["provider"] == {"id": "m1"}
    assert (proposed_call.content["provider_id"], proposed_call.content["malformed"]) == ("p1", "{oops")


def test_a_message_waits_for_its_turn_or_step():
    log = History().in_turn()
    log.apply(submitted("s", "steer"), USER)
    log.apply(submitted("q"), USER)
    assert [item.input for item in context_of(log)] == ["i1"]
    log.apply(step_started(log.state))
    assert [(item.input, item.step) for item in context_of(log)] == [("i1", None), ("s", 1)]
    log.apply(step_started(log.state))
    assert [item.input for item in context_of(log)] == ["i1", "s"]


@pytest.mark.parametrize(
    ("event", "dropped"),
    [
        (InputWithdrawn(input="q"), {"q"}),
        (ThreadCloseRequested(), {"s", "e", "q"}),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_messages_that_no_model_will_see(event: Event, dropped: set[str]):
    log = History().in_turn()
    log.apply(submitted("s", "steer"), USER)
    log.apply(submitted("e", "steer", expected_turn=1), USER)
    log.apply(submitted("q"), USER)
    log.apply(event, USER)
    assert transcript_of(log).dropped == dropped
    assert [item.input for item in transcript_of(log).items] == ["i1", "s", "e", "q"]


def test_steering_is_dropped_with_its_turn():
    log = History().in_turn()
    log.apply(submitted("s", "steer"), USER)
    log.apply(submitted("e", expected_turn=1), USER)
    log.apply(submitted("q"), USER)
    log.apply(cancel_requested(log.state, discard=True), USER)
    assert transcript_of(log).dropped == {"s"}
    log.apply(turn_ended(log.state, "aborted"))
    assert transcript_of(log).dropped == {"s", "e"}
    log.apply(turn_started(log.state, ["q"]))
    assert transcript_of(log).dropped == {"s", "e"}


def test_edited_arguments_take_the_place_of_the_models():
    log = History().with_calls(proposed(0), proposed(1))
    log.apply(approved(log.call("1.1.0"), edited=Edited(args={"command": "ls"}, call_hash="1" * 64)), USER)
    log.apply(approved(log.call("1.1.1")), USER)
    calls = [item.content["args"] for item in context_of(log) if item.kind == "tool_call"]
    assert calls == [{"command": "ls"}, {"command": "run 1"}]


@pytest.mark.parametrize(
    ("event", "outcome", "content"),
    [
        (denied, "denied", "The call was denied. not on a Friday"),
        (approval_expired, "expired", "Nobody approved the call in time; it did not run."),
    ],
)
def test_a_call_that_did_not_run_has_a_result_nevertheless(event, outcome: str, content: str):
    log = History().with_calls()
    log.apply(approval_requested(log.only_call))
    log.apply(event(log.only_call))
    assert results_of(log) == [("tool_result", outcome, content)]


def test_a_cancel_gives_each_call_its_result():
    log = History().with_calls(proposed(0), proposed(1))
    log.apply(cancel_requested(log.state), USER)
    assert results_of(log) == [("tool_result", "cancelled", "The call was cancelled.")] * 2


def test_calls_that_come_cancelled():
    log = History().in_step()
    log.apply(cancel_requested(log.state), USER)
    log.apply(step_finished(log.state, "late", [proposed(0)]))
    items = context_of(log)
    assert kinds(items) == ["message", "message", "tool_call", "tool_result"]
    assert [item.part for item in items[1:]] == [0, 1, 2]


def test_a_result_without_content_is_a_sentence():
    log = History().with_running_call()
    log.apply(finished(log.only_call, "timed_out", result=None), EXECUTOR)
    assert results_of(log) == [("tool_result", "timed_out", "The tool ran out of time and was stopped.")]


def test_an_unknown_call_has_its_result_at_the_end_of_the_turn_and_a_resolution_later():
    log = History().with_unknown_call()
    assert results_of(log) == []
    log.apply(turn_ended(log.state, "interrupted"))
    unknown = ("tool_result", "unknown", "Whether the tool ran is not known: its executor was lost while it ran.")
    assert results_of(log) == [unknown]
    log.apply(resolved(log.only_call), USER)
    assert results_of(log) == [unknown, ("resolution", "succeeded", "looked at the ledger")]
    assert kinds(context_of(log)) == ["message", "tool_call", "tool_result", "resolution"]


def test_an_unknown_call_that_is_resolved_in_its_turn_has_one_result():
    log = History().with_unknown_call()
    event = resolved(log.only_call, "failed").model_copy(update={"result": {"exit": 1}, "note": None})
    log.apply(event, USER)
    assert results_of(log) == [("tool_result", "failed", {"exit": 1})]
    log = History().with_unknown_call()
    log.apply(resolved(log.only_call, "abandoned").model_copy(update={"note": None}), USER)
    assert results_of(log) == [("tool_result", "abandoned", "Whether the tool ran is not known, and it was given up.")]


def test_results_of_several_calls_at_once_are_in_order():
    log = History().with_calls(*[proposed(index) for index in range(12)])
    log.apply(cancel_requested(log.state), USER)
    results = [item.call for item in context_of(log) if item.kind == "tool_result"]
    assert results == [f"1.1.{index}" for index in range(12)]


def test_the_end_of_an_import_leaves_results():
    log = History().idle()
    log.apply(ThreadImportStarted(source="s"), IMPORTER)
    log.apply(submitted("i1"), IMPORTER)
    log.apply(turn_started(log.state), IMPORTER)
    log.apply(step_started(log.state), IMPORTER)
    log.apply(step_finished(log.state, calls=[proposed(0)]), IMPORTER)
    log.apply(submitted("i2"), IMPORTER)
    log.apply(ThreadImportEnded(source="s"), IMPORTER)
    assert [kind for kind, _, _ in results_of(log)] == ["tool_result"]
    assert transcript_of(log).dropped == {"i2"}


def test_a_rewind_takes_later_turns_out_of_the_context():
    log = History().ended_turn().ended_turn().ended_turn()
    log.apply(submitted("i4"), USER)
    log.apply(ThreadRewound(to_turn=1), USER)
    log.apply(turn_started(log.state))
    assert [item.turn for item in context_of(log)] == [1, 1, 4]
    assert len(transcript_of(log).items) == 7
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "fine"))
    log.apply(turn_ended(log.state))
    log.apply(ThreadRewound(to_turn=2), USER)
    assert [item.turn for item in context_of(log)] == [1, 1]


def test_a_rewind_to_before_the_first_turn_leaves_nothing():
    log = History().ended_turn()
    log.apply(ThreadRewound(to_turn=0), USER)
    assert context_of(log) == []
    log.ended_turn()
    assert [item.turn for item in context_of(log)] == [2, 2]


def test_what_comes_of_a_rewound_call_is_history():
    log = History().ended_turn()
    log.in_turn("i2")
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, calls=[proposed(0)]))
    log.apply(approved(log.only_call), USER)
    log.apply(dispatched(log.only_call, pool="client"))
    log.apply(lost(log.only_call))
    log.apply(turn_ended(log.state, "failed"))
    log.apply(ThreadRewound(to_turn=1), USER)
    log.apply(resolved(log.only_call), USER)
    assert [item.turn for item in context_of(log)] == [1, 1]
    resolution = transcript_of(log).items[-1]
    assert (resolution.kind, resolution.place) == ("resolution", None)
    log.apply(ThreadRewound(to_turn=1), USER)
    assert transcript_of(log).items[-1] == resolution


def test_a_summary_stands_for_what_it_sums_up():
    log = History().ended_turn().ended_turn()
    through = log.state.seq
    log.ended_turn()
    log.apply(compacted(log.state, through))
    summary, *rest = context_of(log)
    assert summary.content == {"kind": "summary", "text": "they said hello", "through_seq": through}
    assert [item.turn for item in rest] == [3, 3]
    log.ended_turn()
    log.apply(compacted(log.state))
    assert kinds(context_of(log)) == ["summary"]
    assert kinds(transcript_of(log).items).count("summary") == 2


def test_a_message_that_waits_outlives_a_summary():
    log = History().ended_turn()
    log.apply(submitted("i2"), USER)
    log.apply(compacted(log.state))
    log.apply(turn_started(log.state))
    assert kinds(context_of(log)) == ["summary", "message"]


def test_a_summary_takes_results_along_with_their_calls():
    """Its seq was predicted, and foreign records came between: the call is before, its result after it."""
    log = History().with_running_call()
    between = log.state.seq
    log.apply(finished(log.only_call), EXECUTOR)
    log.apply(compacted(log.state, between))
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "fine"))
    assert kinds(context_of(log)) == ["summary", "message"]


def test_a_rewind_takes_along_what_sums_up_later_turns():
    log = History().ended_turn()
    log.apply(compacted(log.state))
    log.ended_turn()
    log.apply(compacted(log.state))
    log.ended_turn()
    assert kinds(context_of(log)) == ["summary", "message", "message"]
    log.apply(ThreadRewound(to_turn=1), USER)
    summary = context_of(log)
    assert (kinds(summary), summary[0].turn) == (["summary"], 1)
    log = History().ended_turn().ended_turn()
    log.apply(compacted(log.state))
    log.apply(ThreadRewound(to_turn=1), USER)
    assert kinds(context_of(log)) == ["message", "message"]


def test_a_summary_of_nothing():
    log = History().idle()
    log.apply(ContextCompacted(base=0, through_seq=1, summary="nothing yet"))
    (summary,) = context_of(log)
    assert summary.turn is None


def test_no_ops_change_nothing():
    log = History().in_step()
    seen = log.state
    log.apply(step_finished(log.state, "one"))
    verdict = log.append(step_finished(seen, "two"))
    assert transcript_changes(log.states[-2], log.state, log.records[-1], verdict) == ()


def test_copies_are_apart():
    transcript = transcript_of(plain_turn(History()))
    copy = transcript.copy()
    log = History().ended_turn()
    copy.apply(transcript_changes(log.states[1], log.states[2], log.records[1], log.verdicts[1]))
    assert copy != transcript


def test_changes_about_items_that_are_not_there_are_harmless():
    """A transcript that was loaded without what no model sees any more."""
    log = History().with_calls()
    log.apply(approved(log.only_call, edited=Edited(args={}, call_hash="1" * 64)), USER)
    transcript = Transcript()
    for place in (2, len(log.records) - 1):
        before, after = log.states[place : place + 2]
        transcript.apply(transcript_changes(before, after, log.records[place], log.verdicts[place]))
    assert transcript.items == []


def test_a_summary_carries_the_plan_unknown_calls_and_loaded_skills_beside_its_words() -> None:
    log = History().in_turn()
    log.apply(step_started(log.state))
    log.apply(step_finished(log.state, "Let me see.", [proposed(0), proposed(1)]))
    for call in list(log.state.calls):
        log.apply(approved(log.call(call)), USER)
        log.apply(dispatched(log.call(call)))
        log.apply(claimed(log.call(call)), EXECUTOR)
        log.apply(lost(log.call(call)))
    log.apply(cancel_requested(log.state), USER)
    log.apply(turn_ended(log.state, "aborted"))
    log.apply(PlanProposed(plan_version=1, tasks=(Task(id="a", title="look"), Task(id="b", title="mend"))))
    log.apply(PlanApproved(plan_version=1, by=USER), USER)
    log.apply(SkillLoaded(name="review", skill_version="1.0.0", sha256=NO_HASH))
    log.apply(SkillLoaded(name="review", skill_version="1.1.0", sha256=NO_HASH))
    log.apply(compacted(log.state))
    [summary] = context_of(log)
    assert summary.content["state"] == {
        "plan": {
            "version": 1,
            "tasks": [
                {"id": "a", "title": "look", "status": "pending"},
                {"id": "b", "title": "mend", "status": "pending"},
            ],
        },
        "unknown_calls": [{"call": "1.1.0", "tool": "shell"}, {"call": "1.1.1", "tool": "shell"}],
        "skills": [{"name": "review", "version": "1.1.0"}],
    }


def test_a_summary_where_nothing_goes_on_is_its_words_alone() -> None:
    log = plain_turn(History())
    log.apply(compacted(log.state))
    [summary] = context_of(log)
    assert "state" not in summary.content
