from dataclasses import replace

import pytest

from services.runtime.models import scripted
from services.runtime.models.port import (
    AnswerItem,
    Delta,
    ModelAnswer,
    ModelCall,
    ModelFailure,
    ModelRequest,
    NamedModels,
    TokenUsage,
    text_of_content,
)
from services.runtime.models.scripted import ScriptedModel, ScriptError, parse_script, read_script


def user(text: str):
    return {"kind": "message", "role": "user", "content": [{"type": "text", "text": text}]}


def said(text: str):
    return {"kind": "message", "role": "assistant", "content": [{"type": "text", "text": text}]}


def call(tool: str, name: str = "1.1.0", **args):
    return {"kind": "tool_call", "call": name, "tool": tool, "args": args}


def result(tool: str, text: str, name: str = "1.1.0", outcome: str = "succeeded"):
    content = {"content": [{"type": "text", "text": text}], "is_error": False, "bytes_cut": 0}
    return {"kind": "tool_result", "call": name, "tool": tool, "outcome": outcome, "content": content}


def asked(*items) -> ModelRequest:
    return ModelRequest(model="scripted", settings={}, instructions=None, items=items)


def answered(script: str, *items):
    """Asserts that it did not yield to the event loop."""
    return run(ScriptedModel(parse_script(script)), *items)


def run(model: ScriptedModel, *items, emit=lambda _: None):
    try:
        model.answer(asked(*items), emit).send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it yielded to the event loop")


SCRIPT = r"""
rules:
  - match: {last_user: "^fix (?P<file>\\S+)", steps: 0}
    reasoning: I look at {{file}} first.
    calls:
      - {tool: read_file, args: {path: "{{file}}", deep: [{x: "{{1}} {{nothing}}"}], n: 3}}
  - match: {last_tool: read_file, last_result: 'return (\d+)', last_outcome: succeeded}
    text: "It returns {{1}}, as {{result}} says, when asked: {{input}}"
    usage: {input_tokens: 7, output_tokens: 5, cached_tokens: 2}
  - match: {steps: 2}
    text: third
"""


def test_the_first_rule_that_matches_is_played():
    answer = answered(SCRIPT, user("fix a.py please"))
    assert answer.items == [AnswerItem("reasoning", "I look at a.py first.")]
    assert answer.calls == [
        ModelCall("read_file", {"path": "a.py", "deep": [{"x": "a.py {{nothing}}"}], "n": 3}),
    ]
    assert answer.stop_reason == "tool_call"
    assert answer.usage.output_tokens > 1


def test_results_are_matched():
    answer = answered(SCRIPT, user("fix a.py"), call("read_file"), result("read_file", "return 5"))
    assert answer.items == [AnswerItem("text", "It returns 5, as return 5 says, when asked: fix a.py")]
    assert answer.usage == TokenUsage(7, 5, 2)
    assert answer.stop_reason == "stop"


def test_steps_are_answers_since_the_last_user_message():
    items = [
        user("old"),
        said("x"),
        user("go"),
        {"kind": "reasoning", "text": "hm"},
        call("a"),
        call("b", "1.1.1"),
        result("a", "1"),
        result("b", "2", "1.1.1"),
        call("a", "1.2.0"),
        result("a", "3", "1.2.0"),
    ]
    assert answered(SCRIPT, *items).items == [AnswerItem("text", "third")]


@pytest.mark.parametrize(
    "items",
    [
        (),
        (user("something"),),
        (user("fix a.py"), said("done")),
        (user("fix a.py"), call("read_file"), result("read_file", "return 5", outcome="failed")),
        (user("fix a.py"), call("read_file"), result("read_file", "nothing")),
        (user("fix a.py"), call("shell"), result("shell", "return 5")),
    ],
)
def test_where_no_rule_matches_the_failure_says_what_was_there(items):
    failure = answered(SCRIPT, *items)
    assert isinstance(failure, ModelFailure)
    assert not failure.retriable
    assert "no rule" in failure.error
    assert "steps" in failure.error


def test_a_result_is_the_last_only_if_nothing_came_after_it():
    script = "rules: [{match: {last_tool: a}, text: 'so'}, {match: always, text: other}]"
    assert answered(script, user("x"), call("a"), result("a", "1")).items[0].text == "so"
    assert answered(script, user("x"), call("a"), result("a", "1"), user("stop")).items[0].text == "other"


def test_malformed_arguments():
    answer = answered("rules: [{match: always, calls: [{tool: t, malformed: '{'}]}]")
    assert answer.calls == [ModelCall("t", {}, malformed="{")]


def test_errors_so_often_and_for_each_conversation():
    model = ScriptedModel(
        parse_script("rules: [{match: always, text: ok, error: {message: busy, retriable: true, times: 2}}]")
    )
    failure = ModelFailure("busy", retriable=True)
    assert [run(model, user("a")) for _ in range(2)] == [failure, failure]
    assert run(model, user("a")).items[0].text == "ok"
    assert run(model, user("b")) == failure


def test_errors_for_ever():
    model = ScriptedModel(parse_script("rules: [{match: always, error: {message: never, retry_after_seconds: 3}}]"))
    assert [run(model) for _ in range(3)] == [ModelFailure("never", retriable=False, retry_after_seconds=3)] * 3


def test_remembered_failures_are_bounded(monkeypatch):
    monkeypatch.setattr(scripted, "FAILURES_REMEMBERED_MAX", 3)
    model = ScriptedModel(parse_script("rules: [{match: always, error: {message: never, times: 1}}]"))
    for number in range(10):
        run(model, user(str(number)))
    assert len(model._failures) <= 3


async def test_delays_and_deltas():
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    script = parse_script(
        "rules: [{match: always, reasoning: so, text: 'one  two three', delay_seconds: 2, delta_seconds: 0.5}]"
    )
    deltas: list[Delta] = []
    answer = await ScriptedModel(script, sleep).answer(asked(), deltas.append)
    assert slept == [2, 0.5, 0.5, 0.5, 0.5]
    assert deltas[0] == Delta("reasoning", "so")
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == answer.items[1].text


def test_deltas_without_time_between_them_do_not_wait():
    deltas: list[Delta] = []
    run(ScriptedModel(parse_script("rules: [{match: always, text: a b, delta_seconds: 0}]")), emit=deltas.append)
    assert [delta.text for delta in deltas] == ["a ", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: [", "no YAML"),
        ("", "the script: "),
        ("rules: [{text: x}]", "rules.0.match"),
        ("rules: [{match: {last_user: '('}, text: x}]", "no regular expression"),
        ("rules: [{match: {last_user: 5}}]", "rules.0.match"),
        ("rules: [{match: always, colour: x}]", "rules.0.colour"),
        ("rules: [{match: always, delay_seconds: -1}]", "rules.0.delay_seconds"),
    ],
)
def test_a_broken_script_says_where(text, message):
    with pytest.raises(ScriptError) as raised:
        parse_script(text, "script.yaml")
    assert str(raised.value).startswith("script.yaml: ")
    assert message in str(raised.value)


def test_reading(tmp_path):
    with pytest.raises(ScriptError, match="cannot be read"):
        read_script(tmp_path / "none.yaml")
    (tmp_path / "s.yaml").write_text(SCRIPT)
    assert len(read_script(tmp_path / "s.yaml").rules) == 3


def test_the_example_in_its_docstring_is_valid():
    lines = scripted.__doc__.split("\n\n")[1].splitlines()
    example = "\n".join(line[4:] for line in lines)
    assert len(parse_script(example).rules) == 3


async def test_models_are_chosen_by_name():
    class Says:
        def __init__(self, text):
            self.text = text

        async def answer(self, _request, _emit):
            return ModelAnswer([AnswerItem("text", self.text)])

    models = NamedModels({"scripted": Says("script")}, Says("provider"))
    assert (await models.answer(asked(), print)).items[0].text == "script"
    assert (await models.answer(replace(asked(), model="openai:x"), print)).items[0].text == "provider"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("x", "x"),
        (5, "5"),
        ({"content": [{"type": "text", "text": "out\n"}], "exit_code": 1}, "out\n[exit code 1]"),
        ({"content": [{"type": "text", "text": "out"}], "exit_code": 0}, "out"),
        ({"other": [1, None, True, "é"]}, '{"other": [1, null, true, "é"]}'),
        (["a", {"type": "odd"}], 'a\n{"type": "odd"}'),
        ([1, [2]], "1\n[2]"),
        (
            [{"type": "artifact", "sha256": "ab", "size": 3, "media_type": "image/png"}],
            "[artifact ab: image/png, 3 bytes]",
        ),
    ],
)
def test_content_as_text(content, text):
    assert text_of_content(content) == text


async def summary_of(script, *items):
    request = ModelRequest("scripted", {}, None, [*items, user("Sum it up.")], is_summary=True)
    answer = await ScriptedModel(parse_script(script)).answer(request, lambda _: None)
    assert isinstance(answer, ModelAnswer)
    return answer.items[0].text


async def test_summaries_are_written_by_their_own_rules_or_say_how_long_it_was():
    rules = "rules: [{match: always, text: an answer}, {match: {summary: true, last_user: 'fix (\\S+)'}, text: 'Of {{1}}.'}]"
    assert await summary_of(rules, user("fix a.py")) == "Of a.py."
    told = await summary_of(
        "rules: [{match: always, text: an answer}]", user("fix a.py"), {"kind": "summary", "text": "before"}
    )
    assert "2 items" in told
    assert "fix a.py" in told
    assert await summary_of("rules: []") == "The conversation so far has 0 items."
    step = ModelRequest("scripted", {}, None, [user("fix a.py")])
    answer = await ScriptedModel(parse_script(rules)).answer(step, lambda _: None)
    assert isinstance(answer, ModelAnswer)
    assert answer.items[0].text == "an answer"


async def test_a_script_may_say_how_long_a_conversation_it_takes():
    model = ScriptedModel(parse_script("context_tokens: 10\nrules: [{match: always, text: hi}]"))
    short = await model.answer(asked(user("fix a.py")), lambda _: None)
    assert isinstance(short, ModelAnswer)
    failure = await model.answer(asked(user("x" * 50)), lambda _: None)
    assert isinstance(failure, ModelFailure)
    assert (failure.too_long, failure.retriable) == (True, False)
    assert "the model takes 10" in failure.error
