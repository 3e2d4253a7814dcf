"""The transition table of `schemas.thread`, row by row: what takes effect, what does not, and why."""

import pytest

from schemas.codec import Problem, Record
from schemas.config import Config
from schemas.events import (
    ArtifactRecorded,
    ContextCompactionFailed,
    ContextCompactionRequested,
    Edited,
    Event,
    Failure,
    InputMode,
    InputSubmitted,
    InputWithdrawn,
    PlanApproved,
    PlanProposed,
    PlanRejected,
    RequestedCall,
    SkillLoaded,
    Task,
    TaskUpdated,
    TextItem,
    ThreadArchived,
    ThreadClosed,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadDescribed,
    ThreadImportEnded,
    ThreadImportStarted,
    ThreadRewound,
    ThreadUnarchived,
)
from schemas.ids import derive
from schemas.state import (
    GRANTS_MAX,
    NOTHING,
    REMEMBERED_COMMANDS,
    REMEMBERED_INPUTS,
    REMEMBERED_STARTS,
    Grant,
    LoadedSkill,
    ThreadState,
    is_active,
)
from schemas.thread import fold
from tests.support.recorded.histories import (
    EXECUTOR,
    IMPORTER,
    NO_HASH,
    RUNTIME,
    USER,
    History,
    approval_expired,
    approval_requested,
    approved,
    cancel_requested,
    claim_id,
    claimed,
    compacted,
    created,
    denied,
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
    turn_recovered,
    turn_started,
)

OTHER_HASH = "1" * 64


def effect_of(log: History, event: Event, actor: str = RUNTIME) -> tuple[str | None, ...]:
    return tuple(log.append(event, actor))


class TestThread:
    def test_it_is_created_once(self):
        log = History()
        log.apply(created(title="t", labels={"a": "b"}), USER)
        assert (log.state.status, log.state.title, log.state.labels) == ("active", "t", {"a": "b"})
        assert log.state.config_seq == 1
        assert effect_of(log, created(title="other"), USER) == ("superseded", "the thread exists")
        assert log.state.title == "t"

    @pytest.mark.parametrize("event", [submitted("i"), ThreadArchived(), turn_recovered(NOTHING)], ids=str)
    def test_before_it_is_created_there_is_nothing(self, event: Event):
        log = History()
        assert effect_of(log, event, USER) == ("rejected", "no such thread")
        assert not log.state.exists
        assert log.state.seq == 1

    def test_it_is_described_and_archived(self):
        log = History().idle()
        log.apply(ThreadDescribed(title="t"), USER)
        log.apply(ThreadDescribed(labels={"a": "b"}), USER)
        assert (log.state.title, log.state.labels) == ("t", {"a": "b"})
        log.apply(ThreadDescribed(title=""), USER)
        assert log.state.title is None
        assert effect_of(log, ThreadUnarchived(), USER) == ("superseded", "the thread is not archived")
        log.apply(ThreadArchived(), USER)
        assert effect_of(log, ThreadArchived(), USER) == ("superseded", "the thread is archived")
        log.apply(ThreadUnarchived(), USER)
        assert not log.state.archived

    def test_a_configuration_is_in_force_from_the_next_turn(self):
        log = History().in_turn()
        log.apply(ThreadConfigured(patch={"model": "other", "limits": {"steps_per_turn": 3}}), USER)
        assert log.state.config is not None and log.state.turn is not None
        assert (log.state.config.model, log.state.config.limits.steps_per_turn) == ("other", 3)
        assert log.state.turn.config.model == "scripted:test"
        assert log.state.config_seq == log.state.seq

    @pytest.mark.parametrize(
        "patch",
        [{"model": None}, {"model": 7}, {"surprise": 1}, {"limits": {"steps_per_turn": "3"}}, {"approval": "x"}],
    )
    def test_a_patch_that_gives_no_configuration_changes_nothing(self, patch):
        log = History().idle()
        before = log.state.config
        effect, reason = effect_of(log, ThreadConfigured(patch=patch), USER)
        assert effect == "rejected"
        assert reason is not None and reason.startswith("the patched configuration is none: ")
        assert (log.state.config, log.state.config_seq) == (before, 1)

    def test_it_is_rewound_between_turns(self):
        log = History().ended_turn().ended_turn()
        assert effect_of(log, ThreadRewound(to_turn=3), USER) == ("rejected", "there is no turn 3")
        log.apply(ThreadRewound(to_turn=1), USER)
        assert log.state.base == log.state.seq
        log.in_turn("i3")
        assert effect_of(log, ThreadRewound(to_turn=1), USER) == ("rejected", "turn 3 is open")
        log.apply(ThreadCloseRequested(), USER)
        assert effect_of(log, ThreadRewound(to_turn=1), USER) == ("rejected", "the thread is closing")

    def test_it_is_closed(self):
        log = History().in_turn()
        log.apply(submitted("i2"), USER)
        assert effect_of(log, ThreadClosed()) == ("rejected", "the thread is not closing")
        log.apply(ThreadCloseRequested(), USER)
        assert log.state.turn is not None and log.state.turn.cancelling == "close"
        assert log.state.queue == ()
        assert effect_of(log, ThreadCloseRequested(), USER) == ("superseded", "the thread is closing already")
        assert effect_of(log, submitted("i3"), USER) == ("rejected", "the thread is closing")
        assert effect_of(log, ThreadClosed()) == ("rejected", "a turn is open")
        log.apply(turn_ended(log.state, "aborted"))
        assert is_active(log.state)
        log.apply(ThreadConfigured(patch={"model": "other"}), USER)
        log.apply(ThreadClosed())
        assert not is_active(log.state)
        assert log.append(ThreadClosed()).effect == "duplicate"
        for event in (
            submitted("i4"),
            ThreadDescribed(title="t"),
            ThreadConfigured(patch={}),
            ThreadImportStarted(source="s"),
        ):
            assert effect_of(log, event, USER) == ("rejected", "the thread is closed")
        assert effect_of(log, ThreadCloseRequested(), USER) == ("rejected", "the thread is closed")
        assert effect_of(log, created(), USER) == ("superseded", "the thread exists")
        log.apply(ArtifactRecorded(sha256=NO_HASH, size=1, media_type="text/plain"), USER)

    def test_a_closing_thread_keeps_the_cause_of_an_earlier_cancel(self):
        log = History().in_turn()
        log.apply(cancel_requested(log.state, "limit"))
        log.apply(ThreadCloseRequested(), USER)
        assert log.state.turn is not None and log.state.turn.cancelling == "limit"

    def test_no_turn_starts_in_a_closing_thread(self):
        log = History().idle()
        log.apply(submitted("i1"), USER)
        late = log.make(turn_started(log.state))
        log.apply(ThreadCloseRequested(), USER)
        assert log.add(late) == ("rejected", "the thread is closing")

    def test_what_a_closed_thread_left_unknown_can_be_resolved(self):
        log = History().with_unknown_call()
        log.apply(turn_ended(log.state, "interrupted"))
        log.apply(ThreadCloseRequested(), USER)
        log.apply(ThreadClosed())
        log.apply(resolved(log.only_call, "failed"), USER)
        assert log.only_call.outcome == "failed"


class TestImport:
    def importing(self) -> History:
        log = History().idle()
        log.apply(ThreadImportStarted(source="s"), IMPORTER)
        return log

    def test_one_import_at_a_time(self):
        log = self.importing()
        assert log.state.status == "importing"
        assert log.append(ThreadImportStarted(source="s"), IMPORTER).effect == "duplicate"
        assert effect_of(log, ThreadImportStarted(source="t"), IMPORTER) == (
            "superseded",
            "another import is under way",
        )
        assert effect_of(log, ThreadImportEnded(source="t"), IMPORTER) == ("superseded", "another import is under way")
        log.apply(ThreadImportEnded(source="s"), IMPORTER)
        assert (log.state.status, log.state.base) == ("active", log.state.seq)
        assert effect_of(log, ThreadImportEnded(source="s"), IMPORTER) == ("rejected", "no import is under way")
        log.apply(ThreadImportStarted(source="t"), IMPORTER)

    def test_a_thread_may_be_created_importing(self):
        log = History()
        log.apply(created(importing=True), IMPORTER)
        log.apply(ThreadImportStarted(source="s"), IMPORTER)
        assert log.state.import_source == "s"
        log.apply(ThreadImportEnded(source="s"), IMPORTER)

    def test_other_services_cannot_end_what_is_none(self):
        log = History().idle()
        assert effect_of(log, ThreadImportEnded(source="s")) == ("superseded", "no import is under way")

    @pytest.mark.parametrize("event", [submitted("i1"), submitted("i1", "steer")])
    def test_a_thread_with_inputs_is_not_idle(self, event: Event):
        log = History().idle()
        log.apply(event, USER)
        assert effect_of(log, ThreadImportStarted(source="s"), IMPORTER) == ("rejected", "the thread is not idle")

    def test_a_thread_that_has_gone_on_is_not_imported_into(self):
        gone_on = ("rejected", "the thread has gone on since the last import")
        assert effect_of(History().ended_turn(), ThreadImportStarted(source="s"), IMPORTER) == gone_on
        log = self.importing()
        log.apply(submitted("i1"), IMPORTER)
        log.apply(turn_started(log.state), IMPORTER)
        log.apply(ThreadImportEnded(source="s"), IMPORTER)
        for event in (ThreadRewound(to_turn=1), compacted(log.state)):
            again = log.fork()
            again.apply(event, USER)
            assert effect_of(again, ThreadImportStarted(source="s"), IMPORTER) == gone_on
        log.apply(ThreadImportStarted(source="s"), IMPORTER)

    def test_what_was_unfinished_is_interrupted_and_unknown(self):
        log = self.importing()
        log.apply(submitted("i1"), IMPORTER)
        log.apply(turn_started(log.state), IMPORTER)
        log.apply(step_started(log.state), IMPORTER)
        log.apply(step_finished(log.state, calls=[proposed(0), proposed(1)]), IMPORTER)
        done, left = log.state.calls.values()
        log.apply(approved(done), IMPORTER)
        log.apply(dispatched(done), IMPORTER)
        log.apply(claimed(log.call(done.call)), IMPORTER)
        log.apply(finished(log.call(done.call)), IMPORTER)
        log.apply(ThreadImportEnded(source="s"), IMPORTER)
        assert (log.state.turn, log.state.last_outcome) == (None, "interrupted")
        assert (log.only_call.call, log.only_call.status, log.only_call.attempt) == (left.call, "unknown", 0)
        assert not is_active(log.state)
        log.apply(resolved(log.only_call, "abandoned"), USER)

    def test_an_imported_turn_may_go_on_without_knowing_what_a_call_came_to(self):
        log = self.importing()
        log.apply(submitted("i1"), IMPORTER)
        log.apply(turn_started(log.state), IMPORTER)
        log.apply(step_started(log.state), IMPORTER)
        log.apply(step_finished(log.state, calls=[proposed(0)]), IMPORTER)
        log.apply(approved(log.only_call, by="unrecorded"), IMPORTER)
        log.apply(dispatched(log.only_call, pool="import"), IMPORTER)
        assert effect_of(log, step_started(log.state), IMPORTER) == ("rejected", "a call is not settled")
        log.apply(lost(log.only_call), IMPORTER)
        assert log.only_call.status == "unknown"
        log.apply(step_started(log.state), IMPORTER)
        log.apply(step_finished(log.state, "fine"), IMPORTER)
        log.apply(compacted(log.state), IMPORTER)
        log.apply(turn_ended(log.state), IMPORTER)
        log.apply(ThreadRewound(to_turn=1), IMPORTER)
        assert not log.state.live
        later = log.fork()
        later.apply(finished(later.only_call), IMPORTER)
        assert later.state.calls == {} or later.only_call.settled
        log.apply(ThreadImportEnded(source="s"), IMPORTER)
        assert [call.status for call in log.state.calls.values()] == ["unknown"]
        assert log.state.context_tokens == 0

    def test_people_may_describe_and_close_meanwhile(self):
        log = self.importing()
        log.apply(ThreadDescribed(title="t"), USER)
        being_imported = ("rejected", "the thread is being imported")
        assert effect_of(log, ThreadConfigured(patch={}), USER) == being_imported
        assert effect_of(log, turn_recovered(log.state)) == being_imported
        log.apply(compacted(log.state), IMPORTER)
        assert not log.state.live
        log.apply(ThreadCloseRequested(), USER)
        assert log.state.status == "closing"


class TestInput:
    def test_an_id_counts_once(self):
        log = History().idle()
        log.apply(submitted("i1"), USER)
        assert log.append(submitted("i1", text="other"), USER).effect == "duplicate"

    def test_an_id_is_known_as_long_as_it_waits(self):
        log = History().idle()
        for number in range(REMEMBERED_INPUTS + 1):
            log.apply(submitted(f"i{number}"), USER)
        assert "i0" not in log.state.inputs
        assert log.append(submitted("i0"), USER).effect == "duplicate"

    def test_an_id_is_forgotten_in_the_end(self):
        log = History().idle()
        log.apply(submitted("i0"), USER)
        log.apply(InputWithdrawn(input="i0"), USER)
        for number in range(1, REMEMBERED_INPUTS + 1):
            log.apply(submitted(f"i{number}"), USER)
        assert len(log.state.inputs) == REMEMBERED_INPUTS
        log.apply(submitted("i0"), USER)

    def test_a_turn_may_be_expected(self):
        log = History().in_turn()
        assert effect_of(log, submitted("s", "steer", expected_turn=2), USER) == ("rejected", "turn 2 is not open")
        log.apply(submitted("s", "steer", expected_turn=1), USER)
        log.apply(cancel_requested(log.state), USER)
        log.apply(turn_ended(log.state, "aborted"))
        assert log.state.queue == ()
        assert effect_of(log, submitted("t", expected_turn=1), USER) == ("rejected", "turn 1 is not open")

    def test_reject_wants_a_thread_that_does_nothing(self):
        log = History().idle()
        log.apply(submitted("i1", "reject"), USER)
        assert effect_of(log, submitted("i2", "reject"), USER) == ("rejected", "inputs are waiting")
        log.apply(turn_started(log.state))
        assert effect_of(log, submitted("i2", "reject"), USER) == ("rejected", "a turn is open")

    def test_interrupt_cancels_the_turn_that_is_open_where_it_lands(self):
        log = History().in_turn()
        log.apply(submitted("i2", "interrupt"), USER)
        assert log.state.turn is not None and log.state.turn.cancelling == "interrupt"
        log.apply(submitted("i3", "interrupt"), USER)
        log.apply(turn_ended(log.state, "aborted"))
        log.apply(submitted("i4", "interrupt"), USER)
        assert [item.input for item in log.state.queue] == ["i2", "i3", "i4"]

    def test_it_is_withdrawn_while_it_waits(self):
        log = History().idle()
        log.apply(submitted("i1"), USER)
        log.apply(submitted("i2"), USER)
        log.apply(InputWithdrawn(input="i1"), USER)
        assert [item.input for item in log.state.queue] == ["i2"]
        left = ("superseded", "the input has left the queue")
        assert effect_of(log, InputWithdrawn(input="i1"), USER) == left
        assert effect_of(log, InputWithdrawn(input="i9"), USER) == ("rejected", "there is no input i9")


class TestRequestedCall:
    def asked(self, name: str = "i1", mode: InputMode = "queue") -> InputSubmitted:
        call = RequestedCall(tool="restore_files", args={"turn": 1}, call_hash=NO_HASH, by=USER)
        return InputSubmitted(input=name, items=(TextItem(text="put them back"),), mode=mode, call=call)

    def test_it_has_a_turn_of_its_own(self):
        log = History().idle()
        log.apply(self.asked(), USER)
        log.apply(submitted("i2"), USER)
        alone = ("rejected", "a call that is asked for has a turn of its own")
        assert effect_of(log, turn_started(log.state), RUNTIME) == alone
        log.apply(turn_started(log.state, ["i1"]))
        assert log.state.turn is not None and log.state.turn.requested == self.asked().call
        assert effect_of(log, self.asked("i3", "steer"), USER) == alone


class TestSizeOfTheContext:
    def test_what_a_step_used_is_the_size_of_the_context(self):
        log = History().ended_turn()
        assert log.state.context_tokens == 110
        log.apply(compacted(log.state))
        assert log.state.context_tokens == 0

    def test_a_failed_one_is_not_asked_for_again_in_its_turn(self):
        log = History().ended_turn()
        failed = ContextCompactionFailed(base=0, requested=1, error=Failure(kind="provider", message="no"))
        not_asked = ("superseded", "it speaks of a request that is not in force")
        assert effect_of(log, failed) == not_asked
        log.apply(ContextCompactionRequested(base=0, turn=1))
        assert effect_of(log, failed) == not_asked
        log.apply(failed.model_copy(update={"requested": log.state.compaction_seq}))
        assert (log.state.compaction_requested, log.state.compaction_failed_turn) == (False, 1)
        late = ("superseded", "a summary was asked for in this turn, and failed")
        assert effect_of(log, ContextCompactionRequested(base=0, turn=1)) == late
        log.apply(ContextCompactionRequested(), USER)

    def test_an_owner_that_lags_behind_asks_for_none_of_a_context_that_has_changed(self):
        log = History().ended_turn()
        request = ContextCompactionRequested(base=log.state.base, turn=log.state.last_turn)
        log.apply(request)
        log.apply(compacted(log.state))
        late = ("superseded", "the context is another one than that which was too large")
        assert effect_of(log, request) == late
        log.apply(submitted("i2"), USER)
        log.apply(turn_started(log.state))
        assert effect_of(log, request.model_copy(update={"base": log.state.base})) == late
        log.apply(request.model_copy(update={"base": log.state.base, "turn": log.state.last_turn}))


class TestSkills:
    def test_a_version_is_loaded_once(self):
        log = History().idle()
        log.apply(SkillLoaded(name="notes", skill_version="1", sha256=NO_HASH))
        again = SkillLoaded(name="notes", skill_version="1", sha256=NO_HASH)
        assert effect_of(log, again) == ("duplicate", "this version of the skill is loaded")
        log.apply(again.model_copy(update={"skill_version": "2"}))
        assert log.state.skills == {"notes": LoadedSkill("2", NO_HASH)}


class TestTurn:
    def test_it_takes_its_inputs_and_pins_the_configuration(self):
        log = History().idle()
        log.apply(submitted("i1"), USER)
        log.apply(submitted("i2"), USER)
        made = log.apply(turn_started(log.state, ["i2"]))
        turn = log.state.turn
        assert turn is not None
        assert (turn.turn, turn.inputs, turn.config) == (1, ("i2",), Config(model="scripted:test"))
        assert turn.follows == made.record.data_hash
        assert [item.input for item in log.state.queue] == ["i1"]
        assert log.append(turn_started(log.state, ["i1"])).effect == "rejected"
        assert log.add(made).effect == "duplicate"
        assert effect_of(log, turn_started(log.state, ["i1"], turn=1)) == ("superseded", "turn 1 has started")

    def test_numbers_have_no_gaps(self):
        log = History().idle()
        log.apply(submitted("i1"), USER)
        assert effect_of(log, turn_started(log.state, turn=2)) == ("rejected", "turn 1 is next")

    @pytest.mark.parametrize("inputs", [[], ["i1", "i1"]])
    def test_it_takes_one_input_or_more_each_once(self, inputs):
        log = History().idle()
        log.apply(submitted("i1"), USER)
        assert log.append(turn_started(log.state, inputs)).effect == "rejected"

    def test_a_cancel_settles_what_neither_runs_nor_is_unknown(self):
        log = History().with_calls(*[proposed(index) for index in range(5)])
        names = list(log.state.calls)
        log.apply(approval_requested(log.call(names[1])))
        for name in names[2:]:
            log.apply(approved(log.call(name)), USER)
        for name in names[3:]:
            log.apply(dispatched(log.call(name)))
        log.apply(claimed(log.call(names[4])), EXECUTOR)
        log.apply(cancel_requested(log.state), USER)
        assert [log.call(name).outcome for name in names] == ["cancelled"] * 4 + [None]
        assert log.call(names[4]).status == "running"
        assert log.append(claimed(log.call(names[3])), EXECUTOR).effect == "superseded"
        assert effect_of(log, turn_ended(log.state, "aborted"))[0] == "superseded"

    def test_cancels(self):
        log = History().idle()
        assert effect_of(log, cancel_requested(log.state), USER) == ("rejected", "there is no turn 1")
        log.in_turn()
        log.apply(submitted("s", "steer"), USER)
        log.apply(submitted("q"), USER)
        log.apply(cancel_requested(log.state, discard=True), USER)
        assert [item.input for item in log.state.queue] == ["q"]
        assert effect_of(log, cancel_requested(log.state), USER) == ("superseded", "turn 1 is being cancelled")
        log.apply(turn_ended(log.state, "aborted"))
        assert effect_of(log, cancel_requested(log.state), USER) == ("superseded", "turn 1 has ended")

    def test_takeovers_are_on_record(self):
        log = History().in_turn()
        log.apply(turn_recovered(log.state))
        log.apply(cancel_requested(log.state), USER)
        log.apply(turn_ended(log.state, "aborted"))
        assert effect_of(log, turn_recovered(log.state)) == ("superseded", "turn 1 is not open")

    def test_it_ends_once(self):
        log = History().in_step()
        assert effect_of(log, turn_ended(log.state)) == ("superseded", "step 1 is open")
        log.apply(step_finished(log.state, "done"))
        seen = log.state
        made = log.apply(turn_ended(log.state))
        assert log.add(made).effect == "duplicate"
        assert effect_of(log, turn_ended(seen, "failed")) == ("superseded", "turn 1 is not open")
        future = turn_ended(seen).model_copy(update={"turn": 2})
        assert effect_of(log, future) == ("rejected", "turn 2 is not open")

    def test_a_turn_without_an_answer_is_not_completed(self):
        log = History().in_turn()
        assert effect_of(log, turn_ended(log.state)) == ("superseded", "no step has finished")
        log.apply(turn_ended(log.state, "failed"))

    def test_a_turn_may_end_over_a_failed_step(self):
        log = History().in_step()
        log.apply(step_failed(log.state))
        assert effect_of(log, turn_ended(log.state)) == ("superseded", "step 1 is failed")
        log.apply(turn_ended(log.state, "failed"))
        assert log.state.last_outcome == "failed"

    def test_a_turn_ends_with_its_calls_settled_or_unknown_ones_named(self):
        log = History().with_calls()
        assert effect_of(log, turn_ended(log.state, "failed")) == ("superseded", "a call is not settled")
        log = History().with_running_call()
        assert effect_of(log, turn_ended(log.state, "failed")) == ("superseded", "a call is running or may run again")
        log.apply(lost(log.only_call))
        unnamed = turn_ended(log.state, "failed").model_copy(update={"unknown_calls": ()})
        reason = "the unknown calls are others than those named"
        assert effect_of(log, unnamed) == ("superseded", reason)
        log.apply(turn_ended(log.state, "failed"))
        assert log.only_call.status == "unknown"

    def test_waiting_for_people_is_kept_apart(self):
        log = History().with_calls()
        log.apply(approval_requested(log.only_call))
        turn = log.state.turn
        assert turn is not None and turn.waiting_since_ms == log.now_ms
        log.now_ms += 59_000
        log.apply(turn_recovered(log.state))
        log.apply(approved(log.only_call), USER)
        turn = log.state.turn
        assert turn is not None
        assert (turn.waiting_since_ms, turn.waited_ms) == (None, 61_000)


class TestStep:
    def test_attempts(self):
        log = History().in_turn()
        assert effect_of(log, step_started(log.state, attempt=2)) == ("rejected", "attempt 1 of step 1 is next")
        first = log.apply(step_started(log.state))
        assert log.add(first).effect == "duplicate"
        other = step_started(log.state, owner="B", attempt=1)
        assert effect_of(log, other) == ("superseded", "this attempt has started")
        assert effect_of(log, step_started(log.state, attempt=3)) == ("rejected", "attempt 2 of step 1 is next")
        log.apply(step_started(log.state, owner="B"))
        log.apply(step_finished(log.state, "A is faster", started=first.record.data_hash))
        assert effect_of(log, other) == ("superseded", "step 1 has finished")
        assert effect_of(log, other.model_copy(update={"step": 2})) == ("superseded", "another answer took its place")

    def test_only_the_latest_starts_may_be_answered(self):
        log = History().in_step()
        first = log.state.turn.step.starts[0]
        for _ in range(REMEMBERED_STARTS):
            log.apply(step_started(log.state))
        reason = "it answers a start that did not take effect"
        assert effect_of(log, step_finished(log.state, "late", started=first)) == ("superseded", reason)

    def test_not_while_a_call_is_unsettled(self):
        log = History().with_calls()
        assert effect_of(log, step_started(log.state)) == ("rejected", "a call is not settled")
        unknown = History().with_unknown_call()
        assert effect_of(unknown, step_started(unknown.state)) == ("rejected", "a call is not settled")

    def test_steering(self):
        log = History().in_turn()
        log.apply(submitted("s", "steer"), USER)
        log.apply(submitted("q"), USER)
        left = ("superseded", "a steering input has left the queue")
        assert effect_of(log, step_started(log.state, ["q"])) == left
        assert effect_of(log, step_started(log.state, ["s", "s"])) == left
        log.apply(step_started(log.state, ["s"]))
        assert [item.input for item in log.state.queue] == ["q"]
        log.apply(step_started(log.state))
        assert log.state.turn.step.inputs == ("s",)

    def test_events_of_steps_that_are_not_open(self):
        log = History().in_step()
        seen = log.state
        log.apply(step_failed(log.state))
        assert effect_of(log, step_finished(seen, "late")) == ("superseded", "step 1 has failed")
        log.apply(step_started(log.state))
        assert effect_of(log, step_failed(seen)) == ("superseded", "a later attempt has started")
        answer = log.apply(step_finished(log.state, "done"))
        assert log.add(answer).effect == "duplicate"
        assert effect_of(log, step_failed(seen)) == ("superseded", "step 1 has finished")
        future = step_failed(seen).model_copy(update={"step": 2})
        assert effect_of(log, future) == ("rejected", "step 2 has not started")
        log.apply(turn_ended(log.state))
        assert effect_of(log, step_failed(seen)) == ("superseded", "turn 1 is not open")
        assert effect_of(log, step_started(seen)) == ("superseded", "turn 1 is not open")
        assert effect_of(log, future.model_copy(update={"turn": 2})) == ("rejected", "turn 2 is not open")
        assert effect_of(log, step_started(seen).model_copy(update={"turn": 2})) == ("rejected", "turn 2 is not open")

    def test_handing_over_is_no_failure(self):
        log = History().in_step()
        log.apply(step_failed(log.state, handed_over=True))
        assert (log.state.turn.step.failures, log.state.turn.step.handed_over) == (0, True)
        log.apply(step_started(log.state))
        log.apply(step_failed(log.state, retriable=False))
        assert (log.state.turn.step.failures, log.state.turn.step.retriable) == (1, False)

    def test_calls_are_numbered_in_their_order(self):
        log = History().in_step()
        reason = "calls are numbered from 0 in their order"
        assert effect_of(log, step_finished(log.state, calls=[proposed(1)])) == ("rejected", reason)

    def test_calls_of_a_cancelled_turn_are_cancelled_at_once(self):
        log = History().in_step()
        log.apply(cancel_requested(log.state), USER)
        log.apply(step_finished(log.state, calls=[proposed(0)]))
        assert log.only_call.outcome == "cancelled"

    def test_usage_is_folded(self):
        log = History().in_step()
        log.apply(step_finished(log.state, "one"))
        log.apply(step_started(log.state))
        log.apply(step_finished(log.state, "two"))
        assert (log.state.turn.input_tokens, log.state.turn.output_tokens) == (200, 20)

    def test_settled_calls_leave_with_the_next_answer(self):
        log = History().with_calls()
        log.apply(denied(log.only_call), USER)
        log.apply(step_started(log.state))
        log.apply(step_finished(log.state, "ok"))
        assert log.state.calls == {}


class TestApproval:
    def test_a_decision_is_bound_to_the_hash(self):
        log = History().with_calls()
        call = log.only_call
        other = ("superseded", "the call is another one: its hash differs")
        for event in (approval_requested(call), approved(call), denied(call), approval_expired(call)):
            assert effect_of(log, event.model_copy(update={"call_hash": OTHER_HASH})) == other
        log.apply(approved(call), USER)
        assert effect_of(log, dispatched(call).model_copy(update={"call_hash": OTHER_HASH})) == other

    def test_the_first_answer_counts(self):
        log = History().with_calls()
        call = log.only_call
        log.apply(approval_requested(call, expires_at_ms=5))
        assert log.only_call.expires_at_ms == 5
        assert effect_of(log, approval_requested(call)) == ("superseded", "the call is waiting")
        log.apply(approved(call, by="user:bob"), USER)
        by_bob = ("superseded", "the call is approved, approved by user:bob")
        assert effect_of(log, denied(call), USER) == by_bob
        assert effect_of(log, approval_expired(call)) == by_bob
        log = History().with_calls()
        refusal = log.apply(denied(log.only_call), "policy:p")
        assert log.add(refusal).effect == "duplicate"
        assert effect_of(log, approved(log.only_call), USER) == ("superseded", "the call is denied")

    def test_it_expires_where_somebody_was_asked(self):
        log = History().with_calls()
        assert effect_of(log, approval_expired(log.only_call)) == ("rejected", "the call waits for nobody")
        log.apply(approval_requested(log.only_call))
        log.apply(approval_expired(log.only_call))
        assert log.only_call.outcome == "expired"

    def test_an_edited_call_is_the_one_in_force(self):
        log = History().with_calls()
        edited = Edited(args={"command": "ls"}, call_hash=OTHER_HASH)
        log.apply(approved(log.only_call, edited=edited), USER)
        assert (log.only_call.call_hash, log.only_call.args) == (OTHER_HASH, {"command": "ls"})
        log.apply(dispatched(log.only_call))

    def test_scopes(self):
        log = History().with_calls(proposed(0), proposed(1), proposed(2), proposed(3))
        zero, one, two, three = log.state.calls.values()
        log.apply(approved(zero), USER)
        log.apply(approved(one, scope="turn"), USER)
        log.apply(approved(two, scope="thread", tool="shell"), USER)
        log.apply(approved(three, scope="thread"), USER)
        assert log.state.turn.grants == (Grant(one.call_hash, None, USER),)
        assert log.state.grants == (Grant(None, "shell", USER), Grant(three.call_hash, None, USER))

    def test_grants_have_a_limit(self):
        log = History().with_calls(*[proposed(index) for index in range(GRANTS_MAX + 2)])
        for call in list(log.state.calls.values()):
            log.apply(approved(call, scope="thread"), USER)
        assert len(log.state.grants) == GRANTS_MAX
        assert log.state.grants[-1].call_hash == call.call_hash


class TestDispatch:
    def test_needs_an_approval_and_the_next_attempt(self):
        log = History().with_calls()
        assert effect_of(log, dispatched(log.only_call)) == ("rejected", "the call is proposed")
        log.apply(approved(log.only_call), USER)
        assert effect_of(log, dispatched(log.only_call, attempt=2)) == ("rejected", "attempt 1 is next")
        made = log.apply(dispatched(log.only_call))
        assert log.add(made).effect == "duplicate"
        other = dispatched(log.only_call, "pure", attempt=1)
        assert effect_of(log, other) == ("superseded", "attempt 1 has been dispatched")
        assert effect_of(log, dispatched(log.only_call)) == ("rejected", "the call is dispatched")

    def test_unknown_calls(self):
        log = History().with_calls()
        call = log.only_call
        for name, verdict in {
            "1.1.7": ("rejected", "there is no call 1.1.7"),
            "1.2.0": ("rejected", "there is no call 1.2.0"),
            "2.1.0": ("rejected", "there is no call 2.1.0"),
        }.items():
            assert effect_of(log, denied(call).model_copy(update={"call": name}), USER) == verdict
        assert effect_of(log, denied(call).model_copy(update={"call": "odd"}), USER)[0] == "rejected"
        log.apply(denied(call), USER)
        for event in (approval_requested(call), approved(call), dispatched(call), claimed(call)):
            assert effect_of(log, event) == ("superseded", "the call is denied")
        log.apply(step_started(log.state))
        log.apply(step_finished(log.state, "ok"))
        assert effect_of(log, denied(call), USER) == ("superseded", "the call 1.1.0 is settled, or never was")
        log.apply(turn_ended(log.state))
        assert effect_of(log, denied(call), USER) == ("superseded", "the call 1.1.0 is settled, or never was")

    def test_not_once_the_turn_is_being_cancelled(self):
        log = History().with_running_call("idempotent")
        log.apply(lost(log.only_call))
        late = log.make(dispatched(log.only_call))
        log.apply(cancel_requested(log.state), USER)
        assert log.add(late) == ("rejected", "the call is unknown")

    def test_not_once_the_turn_is_over(self):
        """No event leads here; a state that was stored by another fold might."""
        log = History().with_approved_call()
        orphan = ThreadState(**{**log.state.__dict__, "turn": None})
        record = log.make(dispatched(log.only_call)).record
        assert fold(orphan, record).verdict == ("rejected", "the call's turn is over or being cancelled")

    @pytest.mark.parametrize("pool", ["client", "thread"])
    def test_where_there_is_no_executor_it_is_the_claim(self, pool: str):
        log = History().with_approved_call()
        made = log.apply(dispatched(log.only_call, pool=pool))
        call = log.only_call
        assert (call.status, call.claim, call.lease_seconds) == ("running", made.record.id, None)
        assert effect_of(log, claimed(call), EXECUTOR) == ("superseded", "the call is running")
        log.apply(finished(call), USER)
        assert log.only_call.outcome == "succeeded"

    def test_the_lease_of_an_earlier_attempt_is_forgotten(self):
        log = History().with_running_call("idempotent")
        assert (log.only_call.lease_seconds, log.only_call.executor) == (30, "E1")
        log.apply(lost(log.only_call))
        log.apply(dispatched(log.only_call, pool="client"))
        assert (log.only_call.lease_seconds, log.only_call.executor) == (None, None)


class TestClaim:
    def test_the_first_claim_of_an_attempt_wins(self):
        log = History().with_dispatched_call()
        first = log.apply(claimed(log.only_call, "E1"), EXECUTOR)
        assert log.add(first).effect == "duplicate"
        assert effect_of(log, claimed(log.only_call, "E2"), EXECUTOR) == ("superseded", "the call is running")
        assert log.only_call.claim == claim_id(claimed(log.only_call, "E1"))

    def test_of_another_attempt(self):
        log = History().with_dispatched_call("idempotent")
        future = claimed(log.only_call).model_copy(update={"attempt": 2})
        assert effect_of(log, future, EXECUTOR) == ("rejected", "attempt 1 is the last")
        late = claimed(log.only_call)
        log.apply(lost(log.only_call))
        log.apply(dispatched(log.only_call))
        assert effect_of(log, late, EXECUTOR) == ("superseded", "attempt 2 is the last")


class TestFinish:
    @pytest.mark.parametrize("outcome", ["succeeded", "failed", "timed_out", "cancelled"])
    def test_settles_the_call(self, outcome):
        log = History().with_running_call()
        made = log.apply(finished(log.only_call, outcome), EXECUTOR)
        assert (log.only_call.outcome, log.only_call.args) == (outcome, {})
        assert log.add(made).effect == "duplicate"
        verdict = log.append(finished(log.only_call, "failed", claim="another"), EXECUTOR)
        assert verdict == ("superseded", f"the call is {outcome}")

    @pytest.mark.parametrize("outcome", ["succeeded", "not_started"])
    def test_needs_the_claim(self, outcome):
        log = History().with_running_call()
        reason = "it speaks of a claim that is not in force"
        assert effect_of(log, finished(log.only_call, outcome, claim="x"), EXECUTOR) == ("superseded", reason)
        assert effect_of(log, finished(log.only_call, outcome, attempt=2), EXECUTOR) == ("superseded", reason)

    def test_of_a_pure_call_the_first_result_wins_whoever_brings_it(self):
        log = History().with_dispatched_call("pure")
        future = finished(log.only_call, claim="x", attempt=2)
        assert log.append(future, EXECUTOR).effect == "superseded"
        log.apply(lost(log.only_call))
        log.apply(dispatched(log.only_call, "pure"))
        log.apply(finished(log.only_call, claim="x", attempt=1), EXECUTOR)

    def test_a_lost_call_may_still_prove_its_end(self):
        log = History().with_running_call("idempotent")
        proof = log.make(finished(log.only_call), EXECUTOR)
        log.apply(lost(log.only_call))
        assert log.only_call.status == "repeatable"
        assert log.add(proof).effect == "applied"

    def test_no_proof_once_a_later_attempt_has_started(self):
        log = History().with_running_call("idempotent")
        proof = log.make(finished(log.only_call), EXECUTOR)
        log.apply(lost(log.only_call))
        log.apply(dispatched(log.only_call))
        log.apply(claimed(log.only_call, "E2"), EXECUTOR)
        assert log.add(proof).effect == "superseded"

    def test_not_started_is_repeatable_unless_last(self):
        log = History().with_running_call()
        claim = log.only_call.claim
        refused = log.apply(finished(log.only_call, "not_started"), EXECUTOR)
        assert (log.only_call.status, log.only_call.claim) == ("repeatable", None)
        assert log.add(refused).effect == "superseded"
        assert log.append(finished(log.only_call, claim=claim), EXECUTOR).effect == "superseded"
        log.apply(dispatched(log.only_call, last=True))
        log.apply(claimed(log.only_call), EXECUTOR)
        log.apply(finished(log.only_call, "not_started"), EXECUTOR)
        assert log.only_call.outcome == "not_started"

    def test_not_started_of_a_last_attempt_is_unknown_where_an_earlier_one_may_have_run(self):
        log = History().with_running_call("idempotent")
        log.apply(lost(log.only_call))
        log.apply(dispatched(log.only_call, "idempotent", last=True))
        log.apply(claimed(log.only_call), EXECUTOR)
        log.apply(finished(log.only_call, "not_started"), EXECUTOR)
        assert log.only_call.status == "unknown"

    def test_word_of_a_lost_attempt_that_it_did_nothing(self):
        log = History().with_unknown_call()
        word = log.make(finished(log.only_call, "not_started"), EXECUTOR)
        log.apply(resolved(log.only_call, "again"), USER)
        waiting = log.fork()
        assert log.add(word).effect == "applied"
        assert (log.only_call.status, log.only_call.may_have_run) == ("repeatable", False)
        waiting.apply(dispatched(waiting.only_call, last=True))
        assert waiting.add(word).effect == "applied"
        assert (waiting.only_call.status, waiting.only_call.may_have_run) == ("dispatched", False)
        waiting.apply(lost(waiting.only_call))
        assert waiting.only_call.outcome == "not_started"

    def test_word_of_a_lost_last_attempt_after_somebody_said_again(self):
        log = History().with_unknown_call(last=True)
        word = log.make(finished(log.only_call, "not_started"), EXECUTOR)
        log.apply(resolved(log.only_call, "again"), USER)
        assert log.add(word).effect == "applied"
        assert log.only_call.status == "repeatable"

    def test_word_that_nothing_ran_settles_an_unknown_call_of_a_turn_that_is_over(self):
        log = History().with_unknown_call()
        word = log.make(finished(log.only_call, "not_started"), EXECUTOR)
        log.apply(turn_ended(log.state, "interrupted"))
        assert log.add(word).effect == "applied"
        assert log.only_call.outcome == "cancelled"

    def test_word_of_a_lost_pure_attempt_changes_nothing(self):
        log = History().with_running_call("pure")
        word = log.make(finished(log.only_call, "not_started"), EXECUTOR)
        log.apply(lost(log.only_call))
        assert log.add(word) == ("superseded", "the call is repeatable")


class TestLost:
    @pytest.mark.parametrize(
        ("effect", "last", "cancelling", "becomes"),
        [
            ("pure", False, False, "repeatable"),
            ("pure", True, False, "failed"),
            ("pure", False, True, "cancelled"),
            ("idempotent", False, False, "repeatable"),
            ("idempotent", True, False, "unknown"),
            ("idempotent", False, True, "unknown"),
            ("reconcilable", False, False, "unknown"),
            ("unsafe", False, False, "unknown"),
            ("unsafe", True, True, "unknown"),
        ],
    )
    def test_a_running_call_by_its_class(self, effect, last, cancelling, becomes):
        log = History().with_running_call(effect, last)
        if cancelling:
            log.apply(cancel_requested(log.state), USER)
        log.apply(lost(log.only_call))
        assert (log.only_call.outcome or log.only_call.status) == becomes

    @pytest.mark.parametrize(("last", "becomes"), [(False, "repeatable"), (True, "not_started")])
    def test_a_call_that_nobody_claimed_as_not_started(self, last, becomes):
        log = History().with_dispatched_call(last=last)
        log.apply(lost(log.only_call))
        assert (log.only_call.outcome or log.only_call.status) == becomes

    def test_needs_the_attempt_and_the_claim_in_force(self):
        log = History().with_running_call("idempotent")
        first = lost(log.only_call)
        assert effect_of(log, lost(log.only_call, claim="x")) == ("superseded", "another claim is in force")
        future = first.model_copy(update={"attempt": 2})
        assert effect_of(log, future) == ("rejected", "attempt 1 is the last")
        log.apply(first)
        assert effect_of(log, first) == ("superseded", "the call is repeatable")
        log.apply(dispatched(log.only_call, "idempotent"))
        assert effect_of(log, first) == ("superseded", "attempt 2 is the last")
        assert effect_of(log, lost(log.only_call, claim="x")) == ("superseded", "the call is dispatched")
        log.apply(finished(log.only_call, claim=first.claim), EXECUTOR)
        assert effect_of(log, first) == ("superseded", "the call is succeeded")

    def test_what_may_have_run_counts_by_the_class_under_which_it_ran(self):
        log = History().with_unknown_call()
        log.apply(resolved(log.only_call, "again"), USER)
        log.apply(dispatched(log.only_call, "pure"))
        running = log.fork()
        log.apply(cancel_requested(log.state), USER)
        assert log.only_call.status == "unknown"
        running.apply(claimed(running.only_call), EXECUTOR)
        running.apply(cancel_requested(running.state), USER)
        running.apply(lost(running.only_call))
        assert running.only_call.status == "unknown"


class TestResolution:
    @pytest.mark.parametrize("decision", ["succeeded", "failed", "abandoned"])
    def test_settles_an_unknown_call(self, decision):
        log = History().with_unknown_call()
        log.apply(resolved(log.only_call, decision), USER)
        assert log.only_call.outcome == decision
        assert log.append(resolved(log.only_call, "failed"), USER) == ("superseded", f"the call is {decision}")

    def test_needs_an_unknown_call_at_that_attempt(self):
        log = History().with_running_call()
        assert effect_of(log, resolved(log.only_call), USER) == ("superseded", "the call is running")
        log.apply(lost(log.only_call))
        other = resolved(log.only_call).model_copy(update={"attempt": 2})
        assert effect_of(log, other, USER) == ("superseded", "attempt 1 is the last")

    def test_again_needs_a_turn_that_goes_on(self):
        log = History().with_unknown_call()
        log.apply(cancel_requested(log.state), USER)
        reason = "turn 1 is being cancelled: the call cannot run again in it"
        assert effect_of(log, resolved(log.only_call, "again"), USER) == ("rejected", reason)


class TestCompaction:
    def test_is_asked_for_between_steps_and_once(self):
        log = History().in_step()
        rejected = ("rejected", "a step is open; ask between steps")
        assert effect_of(log, ContextCompactionRequested(), USER) == rejected
        log.apply(step_failed(log.state))
        log.apply(ContextCompactionRequested(), USER)
        assert effect_of(log, ContextCompactionRequested()) == ("superseded", "a compaction is asked for already")
        log.apply(compacted(log.state))
        assert (log.state.compaction_requested, log.state.base) == (False, log.state.seq)
        log.apply(ThreadCloseRequested(), USER)
        for event in (ContextCompactionRequested(), compacted(log.state)):
            assert effect_of(log, event) == ("rejected", "the thread is closing")

    def test_is_asked_for_while_the_thread_is_idle(self):
        log = History().idle()
        log.apply(ContextCompactionRequested(), USER)
        assert is_active(log.state)
        log.apply(compacted(log.state))
        assert not is_active(log.state)

    def test_needs_the_base_and_settled_calls(self):
        log = History().ended_turn()
        seen = log.state
        log.apply(compacted(seen))
        assert effect_of(log, compacted(seen)) == ("superseded", "the base of the context has changed")
        reason = "a summary stands for items since the base and before itself"
        assert effect_of(log, compacted(log.state, through_seq=99)) == ("rejected", reason)
        assert effect_of(log, compacted(log.state, through_seq=1)) == ("rejected", reason)
        log = History().with_calls()
        unsettled = ("rejected", "a step is open, or a call not settled")
        assert effect_of(log, compacted(log.state)) == unsettled
        log = History().in_step()
        assert effect_of(log, compacted(log.state)) == unsettled


class TestPlan:
    TASKS = (Task(id="a", title="a"), Task(id="b", title="b", depends_on=("a",)))

    def test_versions(self):
        log = History().idle()
        assert effect_of(log, PlanProposed(plan_version=2, tasks=())) == ("rejected", "version 1 is next")
        log.apply(PlanProposed(plan_version=1, tasks=self.TASKS))
        assert effect_of(log, PlanProposed(plan_version=1, tasks=())) == ("superseded", "version 2 is next")
        circle = (Task(id="a", title="a", depends_on=("a",)),)
        assert log.append(PlanProposed(plan_version=2, tasks=circle)).effect == "rejected"
        unasked = ("superseded", "version 2 does not wait for an answer")
        assert effect_of(log, PlanApproved(plan_version=2, by=USER), USER) == unasked
        assert effect_of(log, PlanRejected(plan_version=2, by=USER, reason="r"), USER) == unasked
        log.apply(PlanRejected(plan_version=1, by=USER, reason="r"), USER)
        log.apply(PlanProposed(plan_version=2, tasks=self.TASKS))
        log.apply(PlanApproved(plan_version=2, by=USER), USER)
        assert log.state.plan.in_force == 2

    def test_tasks(self):
        log = History().idle()
        log.apply(PlanProposed(plan_version=1, tasks=self.TASKS))
        running = TaskUpdated(plan_version=1, task="a", status="running", child="t-2")
        assert effect_of(log, running) == ("superseded", "version 1 is not in force")
        log.apply(PlanApproved(plan_version=1, by=USER), USER)
        assert is_active(log.state)
        log.apply(running)
        assert effect_of(log, running) == ("superseded", "task 'a' is running")
        log.apply(ThreadCloseRequested(), USER)
        closing = ("rejected", "the thread is closing")
        assert effect_of(log, PlanProposed(plan_version=2, tasks=self.TASKS)) == closing
        log.apply(ThreadClosed())
        assert not is_active(log.state)

    def test_a_call_proposes_while_it_runs_and_once(self):
        log = History().with_dispatched_call("idempotent", pool="thread")
        log.apply(PlanProposed(plan_version=1, tasks=self.TASKS, call="1.1.0"))
        twice = ("superseded", "the call has proposed version 1")
        assert effect_of(log, PlanProposed(plan_version=2, tasks=self.TASKS, call="1.1.0")) == twice
        log.apply(PlanRejected(plan_version=1, by=USER, reason="r"), USER)
        log.apply(finished(log.only_call))
        over = ("superseded", "the call does not run any more")
        assert effect_of(log, PlanProposed(plan_version=2, tasks=self.TASKS, call="1.1.0")) == over
        assert effect_of(log, PlanProposed(plan_version=2, tasks=self.TASKS, call="1.1.1")) == over

    def test_a_task_ends_with_its_child_in_whichever_version_keeps_it(self):
        log = History().idle()
        for version in (1, 2):
            log.apply(PlanProposed(plan_version=version, tasks=self.TASKS))
            log.apply(PlanApproved(plan_version=version, by=USER), USER)
            if version == 1:
                log.apply(TaskUpdated(plan_version=1, task="a", status="running", child="t-2"))
        stale = TaskUpdated(plan_version=1, task="a", status="failed", child="t-3")
        assert effect_of(log, stale) == ("superseded", "version 1 is not in force")
        log.apply(TaskUpdated(plan_version=1, task="a", status="succeeded", child="t-2"))

    def test_a_task_that_runs_is_not_cancelled_by_who_believes_that_it_waits(self):
        log = History().idle()
        log.apply(PlanProposed(plan_version=1, tasks=self.TASKS))
        log.apply(PlanApproved(plan_version=1, by=USER), USER)
        log.apply(TaskUpdated(plan_version=1, task="a", status="running", child="t-2"))
        works = ("superseded", "thread t-2 works on task 'a'")
        assert effect_of(log, TaskUpdated(plan_version=1, task="a", status="cancelled")) == works
        assert effect_of(log, TaskUpdated(plan_version=1, task="a", status="succeeded", child="t-3")) == works
        log.apply(TaskUpdated(plan_version=1, task="a", status="cancelled", child="t-2"))

    def test_a_task_begins_after_those_that_it_needs(self):
        log = History().idle()
        log.apply(
            PlanProposed(plan_version=1, tasks=(Task(id="a", title="A"), Task(id="b", title="B", depends_on=("a",))))
        )
        log.apply(PlanApproved(plan_version=1, by=USER), USER)
        second = TaskUpdated(plan_version=1, task="b", status="running", child="t-3")
        assert effect_of(log, second) == ("superseded", "task 'b' waits for a")
        log.apply(TaskUpdated(plan_version=1, task="a", status="running", child="t-2"))
        assert effect_of(log, second) == ("superseded", "task 'b' waits for a")
        log.apply(TaskUpdated(plan_version=1, task="a", status="succeeded", child="t-2"))
        log.apply(second)

    def test_a_recorded_session_says_what_it_did_in_its_own_order(self):
        log = History()
        log.apply(created(importing=True), IMPORTER)
        tasks = (Task(id="a", title="A"), Task(id="b", title="B", depends_on=("a",)))
        log.apply(PlanProposed(plan_version=1, tasks=tasks, call="1.1.0"), IMPORTER)
        log.apply(PlanApproved(plan_version=1, by="unrecorded"), IMPORTER)
        log.apply(TaskUpdated(plan_version=1, task="b", status="running"), IMPORTER)

    def test_nobody_goes_on_with_what_a_recorded_session_planned(self):
        log = History()
        log.apply(created(importing=True), IMPORTER)
        log.apply(PlanProposed(plan_version=1, tasks=self.TASKS, call="1.1.0"), IMPORTER)
        log.apply(PlanApproved(plan_version=1, by="unrecorded"), IMPORTER)
        log.apply(TaskUpdated(plan_version=1, task="a", status="running"), IMPORTER)
        log.apply(ThreadImportEnded(source="s"), IMPORTER)
        assert not is_active(log.state)
        assert log.state.plan.in_force == 1

    @pytest.mark.parametrize(("approval", "call", "active"), [("never", None, True), ("always", None, False)])
    def test_a_plan_that_waits_is_the_runtimes_where_no_person_is_asked(self, approval, call, active):
        log = History().idle()
        log.apply(ThreadConfigured(patch={"plan_approval": approval}), USER)
        log.apply(PlanProposed(plan_version=1, tasks=self.TASKS, call=call))
        assert is_active(log.state) == active

    def test_references_are_on_record(self):
        log = History().idle()
        log.apply(ArtifactRecorded(sha256=NO_HASH, size=1, media_type="text/plain"), USER)
        log.apply(SkillLoaded(name="s", skill_version="1", sha256=NO_HASH))


class TestCommands:
    def test_an_id_is_used_up_by_any_verdict(self):
        log = History()
        event_id = derive("key")
        early = log.make(ThreadArchived(), USER, event_id)
        assert log.add(early).effect == "rejected"
        log.idle()
        assert log.add(early).effect == "duplicate"
        conflict = "conflict: the same command id with other content"
        assert log.append(ThreadDescribed(title="t"), USER, event_id) == ("rejected", conflict)

    def test_the_last_ones_are_remembered(self):
        log = History().idle()
        first = log.apply(ThreadDescribed(title="first"), USER)
        for _ in range(REMEMBERED_COMMANDS - 1):
            log.apply(ThreadDescribed(title="other"), USER)
        assert log.add(first).effect == "duplicate"
        log.apply(ThreadDescribed(title="other"), USER)
        assert log.add(first).effect == "applied"

    def test_a_services_id_is_used_up_by_taking_effect(self):
        log = History().idle()
        event_id = derive("service")
        assert log.append(turn_recovered(log.state), RUNTIME, event_id).effect == "superseded"
        log.in_turn()
        assert log.append(turn_recovered(log.state), RUNTIME, event_id).effect == "applied"


class TestUndecodable:
    def record(self, log: History, problem: Problem | None, actor: str = RUNTIME, kind: str = "x.y.v2") -> Record:
        made = log.make(ThreadArchived(), actor).record
        return made._replace(data=None, problem=problem, kind=kind, offset=log.state.offset + 1)

    def test_it_has_a_seq_and_a_place_in_the_chain(self):
        log = History().idle()
        state, verdict = fold(log.state, self.record(log, Problem(True, "the hash differs")))
        assert verdict == ("rejected", "undecodable: the hash differs")
        assert (state.seq, state.offset) == (2, log.state.offset + 1)
        assert state.chain != log.state.chain
        assert fold(log.state, self.record(log, None)).verdict == ("rejected", "undecodable: the record has no data")

    def test_what_is_not_understood_is_noted(self):
        log = History().idle()
        state = log.state
        for number in range(20):
            for _ in range(2):
                state, verdict = fold(state, self.record(log, Problem(False, "not known"), kind=f"x.y.v{number}"))
                assert verdict == ("ignored", "not known")
        assert state.ignored_types == tuple(f"x.y.v{number}" for number in range(4, 20))

    def test_a_command_has_used_up_its_id(self):
        log = History().idle()
        record = self.record(log, Problem(True, "broken"), USER)
        state, _ = fold(log.state, record)
        assert fold(state, record).verdict.effect == "duplicate"


def test_a_state_without_a_configuration_is_handled():
    """No event leads here; a state that was stored by another fold might."""
    odd = ThreadState(status="active")
    log = History(state=odd)
    assert log.append(ThreadConfigured(patch={}), USER).effect == "rejected"
    log.apply(submitted("i1"), USER)
    assert log.append(turn_started(log.state)).effect == "rejected"
    log.apply(ThreadConfigured(patch={"model": "m"}), USER)
    assert log.state.config == Config(model="m")
