import pytest
from pydantic import JsonValue

from schemas.config import Config
from schemas.events import (
    InputMode,
    InputSubmitted,
    InputWithdrawn,
    ThreadArchived,
    ThreadCloseRequested,
    ThreadConfigured,
    ThreadCreated,
    ThreadDescribed,
    ThreadUnarchived,
    TurnCancelRequested,
)
from schemas.ids import DataHash, EventId, TenantId, ThreadId, ThreadKey
from schemas.thread import CONFLICT
from services.ingest.commands.accepting import accept
from services.ingest.commands.accepting.accept import Accepted, AcceptLimits, Command, Stored
from services.ingest.http.auth import SCOPES, Principal
from services.ingest.http.problems import (
    IDEMPOTENCY_CONFLICT,
    INVALID_REQUEST,
    QUEUE_FULL,
    THREAD_CLOSING,
    TOO_LARGE,
    Problem,
    ProblemType,
)
from services.ingest.http.requests import (
    CancelTurn,
    CloseThread,
    ConfigRequest,
    CreateThread,
    FirstInput,
    PatchThread,
    SubmitInput,
)

ANN = Principal(TenantId("acme"), "ann", SCOPES)
LIMITS = AcceptLimits(
    input_bytes_max=20,
    result_bytes_max=20,
    config_bytes_max=100,
    default_config=Config(model="standard", instructions="Be brief."),
)


def command(route: str = "inputs", key: str = "k", thread: str = "t-1", principal: Principal = ANN) -> Command:
    return Command(principal, route, ThreadKey(principal.tenant, ThreadId(thread)), key, keyed=True)


def accepted(outcome: Accepted | Problem) -> Accepted:
    assert isinstance(outcome, Accepted), outcome
    return outcome


def refused(outcome: Accepted | Problem) -> ProblemType:
    assert isinstance(outcome, Problem), outcome
    return outcome.type


def only_event(outcome: Accepted | Problem) -> object:
    [(_, event)] = accepted(outcome).events
    return event


# Ids


def test_a_key_gives_the_same_ids_however_often_it_comes() -> None:
    request = CreateThread(input=FirstInput(text="hello"))
    first, again = [
        accepted(accept.create_thread(accept.create_command(ANN, "k", keyed=True), request, LIMITS)) for _ in range(2)
    ]
    assert first == again
    assert len({event_id for event_id, _ in first.events}) == 2


@pytest.mark.parametrize(
    "other",
    [
        command(key="other"),
        command(route="close"),
        command(thread="t-2"),
        command(principal=Principal(TenantId("acme"), "ben", SCOPES)),
        command(principal=Principal(TenantId("umbrella"), "ann", SCOPES)),
    ],
)
def test_what_scopes_a_key_changes_the_id(other: Command) -> None:
    assert other.event_id(InputSubmitted) != command().event_id(InputSubmitted)


def test_each_kind_of_one_command_has_its_own_id() -> None:
    assert command().event_id(ThreadDescribed) != command().event_id(ThreadArchived)


def test_tenants_do_not_share_derived_threads() -> None:
    umbrella = Principal(TenantId("umbrella"), "ann", SCOPES)
    assert (
        accept.create_command(ANN, "k", keyed=True).key.thread
        != accept.create_command(umbrella, "k", keyed=True).key.thread
    )


# Threads


def test_a_thread_takes_the_defaults() -> None:
    outcome = accepted(accept.create_thread(accept.create_command(ANN, "k", keyed=False), CreateThread(), LIMITS))
    assert only_event(outcome) == ThreadCreated(config=LIMITS.default_config)
    assert outcome.needs == "nothing"


def test_what_a_thread_is_given_goes_over_the_defaults() -> None:
    request = CreateThread(config=ConfigRequest(approval="always"), title="", labels={"team": "a"})
    event = only_event(accept.create_thread(accept.create_command(ANN, "k", keyed=False), request, LIMITS))
    expected = Config(model="standard", instructions="Be brief.", approval="always")
    assert event == ThreadCreated(config=expected, title=None, labels={"team": "a"})


def test_a_thread_may_have_a_model_of_its_own_and_no_instructions() -> None:
    request = CreateThread(config=ConfigRequest(model="other", instructions=None), title="A title")
    event = only_event(accept.create_thread(accept.create_command(ANN, "k", keyed=False), request, LIMITS))
    assert event == ThreadCreated(config=Config(model="other"), title="A title")


def test_the_first_input_comes_with_the_thread() -> None:
    request = CreateThread(input=FirstInput(text="hello"))
    outcome = accepted(accept.create_thread(accept.create_command(ANN, "k", keyed=False), request, LIMITS))
    (_, created), (input_id, submitted) = outcome.events
    assert isinstance(created, ThreadCreated)
    assert isinstance(submitted, InputSubmitted)
    assert submitted.input == input_id == outcome.shown["input"]
    assert [item.text for item in submitted.items] == ["hello"]  # type: ignore[union-attr]  # clients send text


def test_limits_act_on_a_new_thread() -> None:
    new = accept.create_command(ANN, "k", keyed=False)
    long = CreateThread(config=ConfigRequest(instructions="x" * 200))
    assert refused(accept.create_thread(new, long, LIMITS)) is TOO_LARGE
    assert refused(accept.create_thread(new, CreateThread(input=FirstInput(text="x" * 21)), LIMITS)) is TOO_LARGE


@pytest.mark.parametrize(
    ("body", "events"),
    [
        ({"title": "New"}, [ThreadDescribed(title="New")]),
        ({"title": None}, [ThreadDescribed(title="")]),
        ({"labels": {"a": "b"}}, [ThreadDescribed(labels={"a": "b"})]),
        ({"labels": None}, [ThreadDescribed(labels={})]),
        ({"title": "New", "labels": {}}, [ThreadDescribed(title="New", labels={})]),
        ({"archived": True}, [ThreadArchived()]),
        ({"archived": False}, [ThreadUnarchived()]),
        ({"config": {"model": "x"}}, [ThreadConfigured(patch={"model": "x"})]),
        (
            {"title": "New", "config": {"instructions": None}, "archived": True},
            [ThreadDescribed(title="New"), ThreadConfigured(patch={"instructions": None}), ThreadArchived()],
        ),
    ],
)
def test_a_patch_becomes_events(body: dict[str, JsonValue], events: list[object]) -> None:
    outcome = accepted(accept.patch_thread(command("patch"), PatchThread.model_validate(body), LIMITS))
    assert [event for _, event in outcome.events] == events


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, INVALID_REQUEST),
        ({"archived": None}, INVALID_REQUEST),
        ({"config": {"modell": "x"}}, INVALID_REQUEST),
        ({"config": {"model": None}}, INVALID_REQUEST),
        ({"config": {"limits": {"steps_per_turn": 0}}}, INVALID_REQUEST),
        ({"config": {"instructions": "x" * 200}}, TOO_LARGE),
    ],
)
def test_a_patch_that_fits_nothing_is_refused(body: dict[str, JsonValue], problem: ProblemType) -> None:
    assert refused(accept.patch_thread(command("patch"), PatchThread.model_validate(body), LIMITS)) is problem


def test_a_thread_is_closed() -> None:
    outcome = accept.close_thread(command("close"), CloseThread(reason="done"))
    assert only_event(outcome) == ThreadCloseRequested(reason="done")


# Inputs and turns


@pytest.mark.parametrize(
    ("request_", "judged"),
    [
        (SubmitInput(text="hi"), False),
        (SubmitInput(text="hi", mode="steer"), False),
        (SubmitInput(text="hi", mode="interrupt"), False),
        (SubmitInput(text="hi", mode="reject"), True),
        (SubmitInput(text="hi", mode="steer", expected_turn=3), True),
    ],
)
def test_an_input_says_whether_it_waits_for_its_verdict(request_: SubmitInput, judged: bool) -> None:
    outcome = accepted(accept.submit_input(command(), request_, LIMITS))
    [(input_id, event)] = outcome.events
    assert event == InputSubmitted(
        input=input_id, items=request_.content({}), mode=request_.mode, expected_turn=request_.expected_turn
    )
    assert outcome.judged is judged
    assert outcome.needs == "room"


def test_an_input_is_measured_in_bytes() -> None:
    assert refused(accept.submit_input(command(), SubmitInput(text="é" * 11), LIMITS)) is TOO_LARGE


def test_a_full_queue_is_a_problem() -> None:
    assert accept.queue_problem(99, 100) is None
    problem = accept.queue_problem(100, 100)
    assert problem is not None
    assert problem.type is QUEUE_FULL


def test_a_closing_thread_is_a_problem() -> None:
    assert accept.closing_problem(is_closing=False) is None
    problem = accept.closing_problem(is_closing=True)
    assert problem is not None
    assert problem.type is THREAD_CLOSING


@pytest.mark.parametrize("mode", ["queue", "interrupt", "reject"])
def test_only_steering_expects_a_turn(mode: InputMode) -> None:
    with pytest.raises(ValueError, match="expected_turn needs the mode `steer`"):
        SubmitInput(text="hi", mode=mode, expected_turn=3)


def test_an_input_is_withdrawn_and_a_turn_cancelled() -> None:
    withdrawn = accept.withdraw_input(command(), "i1")
    assert only_event(withdrawn) == InputWithdrawn(input="i1")
    cancelled = accept.cancel_turn(command(), 3, CancelTurn(note="no", discard=True))
    assert only_event(cancelled) == TurnCancelRequested(turn=3, reason="user", note="no", discard=True)
    assert (withdrawn.judged, cancelled.judged) == (True, True)
    assert cancelled.alike != accept.cancel_turn(command(), 4, CancelTurn()).alike


# Commands that came before

ONE, TWO = EventId("00000000-0000-5000-8000-000000000001"), EventId("00000000-0000-5000-8000-000000000002")


def stored(event_id: EventId, data_hash: str) -> Stored:
    return Stored(event_id, "input.submitted", DataHash(data_hash), 0, 7, 1, "applied", None)


def test_a_command_that_is_known_is_found() -> None:
    known = {ONE: stored(ONE, "a"), TWO: stored(TWO, "b")}
    assert accept.earlier([(ONE, DataHash("a")), (TWO, DataHash("b"))], [], known) == [known[ONE], known[TWO]]
    assert accept.earlier([(ONE, DataHash("a")), (TWO, DataHash("b"))], [], {ONE: known[ONE]}) == [known[ONE]]
    assert accept.earlier([(ONE, DataHash("a"))], [TWO], {}) == []


@pytest.mark.parametrize(
    ("sent", "absent", "known"),
    [
        ([(ONE, DataHash("a")), (TWO, DataHash("x"))], [], [TWO]),
        ([(ONE, DataHash("b"))], [TWO], [ONE, TWO]),
        ([(ONE, DataHash("b"))], [TWO], [TWO]),
    ],
)
def test_another_body_under_the_same_key_is_a_conflict(
    sent: list[tuple[EventId, DataHash]], absent: list[EventId], known: list[EventId]
) -> None:
    outcome = accept.earlier(sent, absent, {event_id: stored(event_id, "b") for event_id in known})
    assert isinstance(outcome, Problem)
    assert outcome.type is IDEMPOTENCY_CONFLICT


def test_what_a_command_could_have_become_is_known() -> None:
    new = accept.create_command(ANN, "k", keyed=True)
    empty = accepted(accept.create_thread(new, CreateThread(), LIMITS))
    assert empty.absent() == [new.event_id(InputSubmitted)]
    full = accepted(accept.create_thread(new, CreateThread(input=FirstInput(text="hi")), LIMITS))
    assert full.absent() == []
    patch = accepted(accept.patch_thread(command("patch"), PatchThread(archived=True), LIMITS))
    assert len(patch.absent()) == 3


def test_the_fold_may_find_the_conflict() -> None:
    assert accept.is_conflict(CONFLICT.effect, CONFLICT.reason)
    assert not accept.is_conflict("rejected", "the thread is closing")
    assert not accept.is_conflict("applied", None)


def test_an_ephemeral_thread_is_told_by_its_id() -> None:
    command = accept.create_command(ANN, "k", keyed=True)
    plain = accepted(accept.create_thread(command, CreateThread(), LIMITS))
    ephemeral = accepted(accept.create_thread(command, CreateThread(ephemeral=True), LIMITS))
    assert ephemeral.command.key == (plain.command.key.tenant, f"e-{plain.command.key.thread}")
    assert ephemeral.command.key.ephemeral and not plain.command.key.ephemeral
    assert ephemeral.events[0][0] != plain.events[0][0]
