import orjson
import pytest
from pydantic import JsonValue

from services.cli.show import LOST, Conversation, line, shortened
from services.client.sse import Fact, JsonObject, Live


def fact(kind: str, data: JsonObject | None, seq: int = 7, effect: str = "applied", reason: str | None = None) -> Fact:
    body: JsonObject = {
        "seq": seq,
        "type": kind,
        "time": "2026-11-29T18:38:57.632Z",
        "effect": effect,
        "actor": "user:bob",
    }
    return Fact.of({**body, "reason": reason, "data": data})


def delta(text: str, step: int = 1, attempt: int = 1, **more: JsonValue) -> Live:
    return Live("delta", orjson.dumps({"turn": 1, "step": step, "attempt": attempt, "text": text, **more}))


def finished(text: str, *calls: JsonObject, step: int = 1, attempt: int = 1) -> Fact:
    items: JsonValue = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": text}]
    return fact("step.finished", {"turn": 1, "step": step, "attempt": attempt, "items": items, "calls": list(calls)})


def shown(*events: Fact | Live) -> str:
    conversation = Conversation(colors=False)
    return "".join(
        [conversation.fact(event) if isinstance(event, Fact) else conversation.live(event) for event in events]
    )


def test_an_answer_that_streamed_is_not_shown_again() -> None:
    assert shown(delta("Hel"), delta("lo"), finished("Hello")) == "Hello\n"


def test_what_was_missed_of_an_answer_is_added() -> None:
    assert shown(delta("Hel"), finished("Hello")) == "Hello\n"
    assert shown(finished("Hello")) == "Hello\n"


def test_an_answer_of_another_attempt_is_shown_whole() -> None:
    assert shown(delta("Hel"), delta("Good", attempt=2), finished("Good day", attempt=2)) == "Hel\nGood day\n"
    assert shown(delta("Hel"), finished("Good day")) == "Hel\nGood day\n"


def test_a_late_delta_is_dropped() -> None:
    assert shown(finished("Hello"), delta("lo"), delta("Next", step=2)) == "Hello\nNext"


def test_a_plan_is_shown_with_what_becomes_of_it() -> None:
    tasks: JsonValue = [{"id": "look", "title": "Look"}, {"id": "mend", "title": "Mend", "depends_on": ["look"]}]
    told = [
        fact("plan.proposed", {"plan_version": 1, "tasks": tasks}),
        fact("plan.approved", {"plan_version": 1, "by": "policy:never"}),
        fact("plan.approved", {"plan_version": 1, "by": "user:ann"}),
        fact("task.updated", {"plan_version": 1, "task": "look", "status": "running", "child": "t-2"}),
        fact("task.updated", {"plan_version": 1, "task": "look", "status": "failed", "result": "it\nbroke"}),
        fact("plan.rejected", {"plan_version": 2, "by": "user:ann", "reason": "no"}),
    ]
    assert shown(*told).splitlines() == [
        "plan, version 1:",
        "  look: Look",
        "  mend: Mend (after look)",
        "plan 1 approved by user:ann",
        "task look running",
        "task look failed: it broke",
        "plan 2 rejected by user:ann: no",
    ]


def test_calls_and_their_results_are_shown() -> None:
    call: JsonObject = {"index": 0, "tool": "shell", "args": {"command": "ls"}}
    result: JsonValue = {"content": [{"type": "text", "text": "\n".join("abcdefgh")}]}
    done = fact("tool_call.finished", {"call": "1.1.0", "outcome": "succeeded", "milliseconds": 5, "result": result})
    assert shown(finished("Look:", call), done).splitlines() == [
        "Look:",
        '▸ 1.1.0 shell {"command": "ls"}',
        "1.1.0 succeeded (5 ms)",
        *[f"  {letter}" for letter in "abcdef"],
        "  … 2 lines more",
    ]


def test_output_that_was_shown_as_it_came_is_not_shown_again() -> None:
    def output(text: str) -> Live:
        return Live("tool_output", orjson.dumps({"call": "1.1.0", "attempt": 1, "text": text}))

    done = fact("tool_call.finished", {"call": "1.1.0", "outcome": "succeeded", "milliseconds": 5, "result": "a\nb\n"})
    assert shown(output("a\n"), output("b\n"), done) == "a\nb\n1.1.0 succeeded (5 ms)\n"
    assert shown(output("a\n"), done) == "a\n1.1.0 succeeded (5 ms)\n  a\n  b\n"


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (fact("turn.ended", {"turn": 1, "outcome": "completed"}), ""),
        (fact("turn.ended", {"turn": 1, "outcome": "aborted", "reason": "user"}), "the turn ended: aborted (user)\n"),
        (fact("turn.ended", {"turn": 1, "outcome": "failed"}), "the turn ended: failed\n"),
        (
            fact("step.failed", {"retriable": True, "error": {"kind": "x", "message": "over\nloaded"}}),
            "the model failed (asked again): over loaded\n",
        ),
        (
            fact("tool_call.approval_requested", {"call": "1.1.0", "reason": "policy"}),
            "1.1.0 waits for approval: policy\n",
        ),
        (fact("tool_call.lost", {"call": "1.1.0", "evidence": "no heartbeat"}), f"1.1.0 lost: no heartbeat{LOST}\n"),
        (fact("tool_call.approved", {"call": "1.1.0", "by": "user:bob"}), "1.1.0 approved by user:bob\n"),
        (fact("tool_call.approved", {"call": "1.1.0", "by": "policy:never"}), ""),
        (
            fact("tool_call.denied", {"call": "1.1.0", "by": "policy:arguments", "reason": "no\nsuch field"}),
            "1.1.0 denied by policy:arguments: no such field\n",
        ),
        (fact("tool_call.approval_expired", {"call": "1.1.0"}), "1.1.0 denied: nobody decided in time\n"),
        (
            fact("tool_call.resolved", {"call": "1.1.0", "decision": "succeeded", "note": "I looked"}),
            "1.1.0 settled as succeeded by user:bob: I looked\n",
        ),
        (
            fact("tool_call.resolved", {"call": "1.1.0", "decision": "again", "note": None}),
            "1.1.0 settled as again by user:bob\n",
        ),
        (fact("turn.cancel_requested", {"turn": 1}), "cancelling …\n"),
        (fact("turn.recovered", {"turn": 1, "found": "a step"}), "taken over by another process: a step\n"),
        (fact("turn.ended", {"turn": 1, "outcome": "failed"}, effect="superseded"), ""),
        (fact("thread.created", {}), ""),
    ],
)
def test_what_matters_to_a_person_is_a_line(event: Fact, text: str) -> None:
    assert shown(event) == text


def test_a_steering_input_is_shown_and_by_which_step_it_is_taken() -> None:
    def submitted(name: str, mode: str) -> Fact:
        items: JsonValue = [{"type": "text", "text": f"text of {name}"}]
        return fact("input.submitted", {"input": name, "mode": mode, "items": items})

    def started(step: int, attempt: int, *inputs: str) -> Fact:
        return fact("step.started", {"turn": 1, "step": step, "attempt": attempt, "inputs": list(inputs)})

    events = [submitted("a", "queue"), submitted("b", "steer"), started(1, 1), started(2, 1, "b"), started(2, 2, "b")]
    assert shown(*events).splitlines() == [
        "user:bob steers: text of b",
        "turn 1, step 2 takes it up: text of b",
    ]


def test_what_was_said_for_a_turn_that_ended_first_is_told() -> None:
    items: JsonValue = [{"type": "text", "text": "too late"}]
    said: JsonObject = {"input": "a", "mode": "steer", "items": items, "expected_turn": 1}
    stays: JsonObject = {**said, "input": "b", "expected_turn": None}
    ended = fact("turn.ended", {"turn": 1, "outcome": "completed"})
    events = [fact("input.submitted", said), fact("input.submitted", stays), ended, ended]
    assert shown(*events).splitlines()[2:] == ["the turn did not take up: too late"]


def test_the_open_turn_is_known() -> None:
    conversation = Conversation(colors=True)
    conversation.fact(fact("turn.started", {"turn": 3}))
    assert conversation.open_turn == 3
    conversation.fact(fact("turn.ended", {"turn": 3, "outcome": "completed"}))
    assert conversation.open_turn is None


def test_reasoning_is_dim() -> None:
    conversation = Conversation(colors=True)
    assert conversation.live(delta("", reasoning="hm")) == "\x1b[2mhm\x1b[0m"


def test_a_line_says_what_a_record_is_and_what_it_came_to() -> None:
    said = fact("input.submitted", {"input": "i1", "items": [{"type": "text", "text": "Make it\nwork"}]})
    assert line(said) == "    7  18:38:57.632  input.submitted              Make it work"
    refused = fact("thread.created", None, effect="superseded", reason="the thread exists")
    assert line(refused).endswith("thread.created                 superseded: the thread exists")
    dispatched = fact("tool_call.dispatched", {"call": "1.1.0", "call_hash": "a" * 64, "last": True})
    assert line(dispatched).endswith("call=1.1.0 last=True")
    done = fact("tool_call.finished", {"call": "1.1.0", "outcome": "failed", "result": {"error": "é"}})
    assert line(done).endswith('1.1.0 failed {"error": "é"}')
    assert line(finished("Hi", {"index": 0, "tool": "shell"})).endswith("1.1 hm Hi shell(…)")
    assert line(fact("turn.ended", {"turn": 2, "outcome": "completed"})).endswith("2 completed")


def test_long_text_is_shortened() -> None:
    assert shortened("a  b\nc", 5) == "a b c"
    assert shortened("abcdef", 5) == "abcd…"
