import orjson

from services.ingest.http import problems
from services.ingest.http.problems import CATALOGUE, Problem, ProblemError, ProblemType, no_such_thread


def test_the_catalogue_holds_every_problem_once() -> None:
    declared = [value for value in vars(problems).values() if isinstance(value, ProblemType)]
    assert sorted(declared) == sorted(CATALOGUE)
    assert len({problem.slug for problem in CATALOGUE}) == len(CATALOGUE)


def test_every_problem_says_what_to_do() -> None:
    for problem in CATALOGUE:
        assert 400 <= problem.status < 600
        assert problem.title[0].isupper() and not problem.title.endswith(".")
        assert problem.advice.endswith(".")


def test_what_can_be_tried_again_says_when() -> None:
    for problem in CATALOGUE:
        assert (problem.retry_after_seconds is not None) == (problem.status in {429, 503})


def test_a_problem_is_one_of_rfc_9457() -> None:
    response = Problem(problems.QUEUE_FULL, "100 inputs wait.", {"queued": 100}).response()
    assert response.status_code == 429
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["retry-after"] == "5"
    assert orjson.loads(response.body) == {
        "type": "https://threadlog.dev/problems/queue-full",
        "status": 429,
        "title": "The thread's queue is full",
        "detail": "100 inputs wait.",
        "queued": 100,
    }


def test_who_is_unknown_is_told_how_to_say_who_he_is() -> None:
    assert Problem(problems.UNAUTHENTICATED, "no").response().headers["www-authenticate"] == "Bearer"
    assert "retry-after" not in Problem(problems.UNAUTHENTICATED, "no").response().headers


def test_a_missing_thread_names_nothing() -> None:
    assert no_such_thread() == no_such_thread()
    assert str(ProblemError(no_such_thread())) == "thread-not-found: There is no thread with this id."
