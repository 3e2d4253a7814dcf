from schemas.canonical import canonical_json, unstorable
from schemas.events import CONTEXT_TOO_LONG, AnswerReasoning, AnswerText
from services.runtime.deciding.decisions import Calling
from services.runtime.deciding.step_outcomes import RESPONSE_ID_CHARACTERS_MAX, step_failed, step_finished
from services.runtime.models.port import AnswerItem, ModelAnswer, ModelCall, ModelFailure
from tests.support.recorded.histories import NO_HASH

CALLING = Calling(1, 1, 1, NO_HASH)


def test_what_a_provider_calls_things_can_be_stored() -> None:
    bad = "a\x00b\ud800"
    answer = ModelAnswer([], [ModelCall(bad, {bad: bad}, bad, bad)], bad, response_id=bad)
    said = step_finished(CALLING, answer).model_dump(mode="json")
    assert unstorable(said) is None
    canonical_json(said)
    assert (said["response_id"], said["calls"][0]["provider_id"]) == ("a\u2400b\ufffd", "a\u2400b\ufffd")


def test_reasoning_stays_reasoning() -> None:
    answer = ModelAnswer([AnswerItem("reasoning", "hm", {"signature": "x"}), AnswerItem("text", "yes")])
    assert step_finished(CALLING, answer).items == (
        AnswerReasoning(text="hm", provider={"signature": "x"}),
        AnswerText(text="yes"),
    )


def test_a_long_response_id_fits_an_index_and_stays_itself() -> None:
    def written(given: str) -> str | None:
        return step_finished(CALLING, ModelAnswer([], response_id=given)).response_id

    longest = "é" * RESPONSE_ID_CHARACTERS_MAX
    assert written(longest) == longest
    first, second = written(longest + "1"), written(longest + "2")
    assert first is not None and len(first) < RESPONSE_ID_CHARACTERS_MAX
    assert first == written(longest + "1") != second


def test_a_failure_says_of_which_kind_it_is_and_when_to_try_again() -> None:
    passing = step_failed(CALLING, ModelFailure("down", retriable=True), 7)
    assert (passing.error.kind, passing.retriable, passing.retry_at_ms) == ("model", True, 7)
    final = step_failed(CALLING, ModelFailure("no", retriable=False), 7)
    assert (final.error.kind, final.retriable, final.retry_at_ms) == ("model", False, None)
    too_long = step_failed(CALLING, ModelFailure("long", retriable=True, too_long=True), 7)
    assert (too_long.error.kind, too_long.retriable, too_long.retry_at_ms) == (CONTEXT_TOO_LONG, False, None)
