"""Every error of the API, in one catalogue: RFC 9457 problems.

The `slug` of a problem is part of the API: clients decide by it and by the status, never by the texts. `advice` becomes
the table of docs/http.md. The detail of a problem says what happened to this request, and what to do if that differs.

Statuses follow one rule: 429 and 503 mean that the same request may succeed later, and carry `Retry-After`; any other
4xx means that something has to change first. A command that is refused with `not-applied` is in the log, and stays
there. After `log-unavailable`, `stopping` and `internal` it may be in the log. After any other problem it is not.

A problem is a value (`Problem`) where it is expected, and an exception (`ProblemError`) where it ends a request.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson
from pydantic import JsonValue
from starlette.responses import Response

from schemas.errors import ThreadlogError

TYPE_PREFIX = "https://threadlog.dev/problems/"
"""Types are URLs by the RFC. Nothing has to be there: the slug behind the prefix is what counts."""
MEDIA_TYPE = "application/problem+json"


class ProblemType(NamedTuple):
    """A kind of problem: what all problems of one slug have in common."""

    slug: str
    status: int
    title: str
    advice: str
    """What a client should do; for the documentation."""
    retry_after_seconds: int | None = None
    """Seconds after which the same request may succeed; None if trying again does not help."""


MALFORMED_JSON = ProblemType("malformed-json", 400, "The body is not JSON", "Send one JSON object, encoded in UTF-8.")
"""Includes NaN and Infinity, which many libraries write although they are not JSON."""
MALFORMED_KEY = ProblemType(
    "malformed-idempotency-key",
    400,
    "The Idempotency-Key cannot be used",
    "Send 1 to 200 visible ASCII characters, such as a UUID.",
)
"""Keys become part of ids and of log lines, so they are short and visible."""
BAD_CURSOR = ProblemType("bad-cursor", 400, "The cursor is not valid", "Start the list again without a cursor.")
"""Also the answer to an `at_least` that is no position, and to a cursor behind the end of the thread."""
MALFORMED_BODY = ProblemType("malformed-body", 400, "The body did not arrive whole", "Send it again.")
"""The upload of an artifact broke off. Nothing of it was stored."""
UNAUTHENTICATED = ProblemType(
    "unauthenticated", 401, "No valid API key", "Send `Authorization: Bearer tl_…` with a key that is not revoked."
)
"""Does not say whether the key never existed or was revoked."""
FORBIDDEN = ProblemType(
    "forbidden", 403, "The API key lacks a scope", "Use a key with the scope that the detail names."
)
FOREIGN_HOST = ProblemType(
    "foreign-host",
    403,
    "Development mode answers only this machine",
    "Send the request to localhost. Development mode believes every caller.",
)
"""Protects a developer's machine from web pages whose name resolves to 127.0.0.1."""
THREAD_NOT_FOUND = ProblemType(
    "thread-not-found",
    404,
    "There is no such thread",
    "Check the id. Threads of other tenants answer the same.",
)
"""Has no member or word that differs for threads of other tenants: it must not reveal that an id exists."""
NOT_FOUND = ProblemType("not-found", 404, "Not found", "Check the path; the detail says what is missing.")
ARTIFACT_NOT_FOUND = ProblemType(
    "artifact-not-found",
    404,
    "There is no such artifact",
    "Check the sha256, or upload it. Artifacts of other tenants answer the same.",
)
"""Like `THREAD_NOT_FOUND`, it is the same for artifacts of other tenants."""
METHOD_NOT_ALLOWED = ProblemType("method-not-allowed", 405, "The method does not fit the path", "See the header Allow.")
NOT_APPLIED = ProblemType(
    "not-applied",
    409,
    "The command was recorded but did not take effect",
    "Read `effect` and `reason`, look at the thread as it is now, and decide anew. The same command stays refused.",
)
"""The answer of a command that lost a race or that the fold refused. Its record is in the log, with this effect."""
CALL_NOT_OPEN = ProblemType(
    "call-not-open",
    409,
    "The tool call does not wait for this",
    "Read the call as it is now. Nothing was recorded.",
)
"""Decided from the views, before anything is recorded: a result has to name the claim of the call."""
THREAD_CLOSING = ProblemType(
    "thread-closing",
    409,
    "The thread takes no new input",
    "Nothing was recorded. Create another thread, or fork this one.",
)
"""Closing is final, so the answer never changes and needs no record."""
NOT_FORKABLE = ProblemType(
    "not-forkable",
    409,
    "The thread cannot be forked now",
    "The detail says why. Nothing was recorded.",
)
"""The thread is ephemeral, is being imported, stands still, or is a fork of too many forks already."""
CHILD_TOO_DEEP = ProblemType(
    "child-too-deep",
    409,
    "The thread is as deep as a thread may be",
    "Create the thread below another one, or by itself. Nothing was recorded.",
)
"""Bounds how far models can nest threads that they create themselves."""
TOOL_NOT_IN_CATALOG = ProblemType(
    "tool-not-in-catalog",
    409,
    "The catalog lacks the tool",
    "Nothing was recorded. Check the name, or start an executor that offers the tool; decide without `args` or `tool`.",
)
"""Checked before an approval is recorded, since an approval of a misspelt tool would never apply."""
FILES_CHANGED_SINCE = ProblemType(
    "files-changed-since",
    409,
    "Files have changed since",
    "`files` lists them with the call that changed each. Restore that call's turn first, or write the files anew. "
    "Nothing was recorded.",
)
"""Checked again by the tool itself, which also sees changes without a record."""
NOTHING_TO_RESTORE = ProblemType(
    "nothing-to-restore", 409, "The turn recorded no changes of files", "What commands changed is not recorded."
)
TOO_LARGE = ProblemType(
    "too-large", 413, "Larger than a limit allows", "Send less; the detail names the limit. Nothing was recorded."
)
"""One type for all limits on size; the detail names the limit."""
UNSUPPORTED_MEDIA_TYPE = ProblemType(
    "unsupported-media-type", 415, "The body is not declared as JSON", "Send `Content-Type: application/json`."
)
"""A web page of another origin can send a form without asking, but not JSON."""
RANGE_NOT_SATISFIABLE = ProblemType(
    "range-not-satisfiable",
    416,
    "The range lies outside of the artifact",
    "Ask for bytes below its size, which `Content-Range` names.",
)
INVALID_REQUEST = ProblemType(
    "invalid-request",
    422,
    "The request does not have the right shape",
    "Correct the places that `errors` names. Unknown fields are refused, so that a misspelt one is noticed.",
)
"""The shape of the body or of a parameter is wrong; `errors` has a `place` and a `detail` for each fault."""
ARTIFACT_MISMATCH = ProblemType(
    "artifact-mismatch",
    422,
    "The bytes do not have the announced sha256",
    "Compute the sha256 of exactly the bytes that are sent. Nothing was stored.",
)
ARTIFACT_MISSING = ProblemType(
    "artifact-missing",
    422,
    "An artifact that is named was not uploaded",
    "Upload it with `PUT /v1/artifacts/{sha256}`, then send this again. Nothing was recorded.",
)
"""Checked before the event is recorded: an event never names an artifact that does not exist."""
ARGUMENTS_DO_NOT_FIT = ProblemType(
    "arguments-do-not-fit",
    422,
    "The edited arguments do not fit the tool",
    "Correct the places that `errors` names; `schema` is what they have to fit. Nothing was recorded.",
)
FORK_POINT = ProblemType(
    "fork-point",
    422,
    "The thread has no such place to fork it at",
    "Name a seq that the thread has, or a turn; or leave `at` out. Nothing was recorded.",
)
STATE_OUT_OF_REACH = ProblemType(
    "state-out-of-reach",
    422,
    "The state takes more than a limit allows",
    "Ask for the newest state (leave out `at`), or read the log with `threadlog export`, which has no such limit.",
)
"""Bounds the work of one request: an earlier state is folded from the records before it."""
UNSTORABLE = ProblemType(
    "unstorable",
    422,
    "The body holds what cannot be stored exactly",
    "Leave out U+0000 and lone surrogates; write integers beyond 2^53 as strings.",
)
"""Refused rather than changed: a record's hash covers its text, and every reader has to get the same."""
IDEMPOTENCY_CONFLICT = ProblemType(
    "idempotency-conflict",
    422,
    "The Idempotency-Key was used for something else",
    "Use a new key for a new command.",
)
"""The key is part of the events' ids, so a second command with it could only be dropped as a duplicate."""
QUEUE_FULL = ProblemType(
    "queue-full", 429, "The thread's queue is full", "Wait until a turn has taken inputs, then send it again.", 5
)
"""A client that submits faster than the model answers has to wait, not the log."""
TOO_MANY_APPENDS = ProblemType(
    "too-many-appends", 429, "Too many commands of this tenant are under way", "Send it again a little later.", 1
)
"""Keeps one tenant from filling the outbox to Kafka that all tenants share."""
TOO_MANY_TRANSFERS = ProblemType(
    "too-many-transfers", 429, "Too many uploads and downloads are under way", "Send it again a little later.", 1
)
"""Bounds the disk for uploads and the memory for downloads."""
INTERNAL = ProblemType(
    "internal",
    500,
    "The service failed",
    "Send it again with the same Idempotency-Key; tell the operators if it stays.",
)
"""An error that nobody expected. It is logged with its traceback, and the answer says nothing about it."""
STOPPING = ProblemType(
    "stopping",
    503,
    "The service ended before it had an answer",
    "Send it again; a command with the same Idempotency-Key. It may have been stored, and counts once.",
    1,
)
"""The request was cut off because the process ends; another instance answers it."""
OVERLOADED = ProblemType("overloaded", 503, "The service is at its limit", "Send it again a little later.", 1)
"""Refused before anything is read, so that an instance at its limit still answers quickly."""
VIEWS_UNAVAILABLE = ProblemType(
    "views-unavailable",
    503,
    "The database does not answer",
    "Send it again later. Writes to threads in use, and streams that are open, go on meanwhile.",
    5,
)
"""Postgres is away. Commands need it only for threads that this process does not know yet."""
VIEWS_BEHIND = ProblemType("views-behind", 503, "The views are behind", "Send it again a little later.", 1)
"""The views did not reach a position in time. They will, so the same request may succeed later."""
ARTIFACTS_UNAVAILABLE = ProblemType(
    "artifacts-unavailable", 503, "The artifact store does not answer", "Send it again a little later.", 2
)
CATALOG_NOT_LOADED = ProblemType(
    "catalog-not-loaded",
    503,
    "The tool catalog is not loaded yet",
    "Send it again a little later, or decide without `args` or `tool`. Nothing was recorded.",
    1,
)
"""Only for a short time after the start of an instance."""
LOG_UNAVAILABLE = ProblemType(
    "log-unavailable",
    503,
    "The log did not acknowledge",
    "The command may have been stored. Send it again with the same Idempotency-Key: it counts once.",
    2,
)
"""Kafka did not acknowledge in time. The record may arrive later, so the command must keep its key."""

CATALOGUE: tuple[ProblemType, ...] = (
    MALFORMED_JSON,
    MALFORMED_KEY,
    BAD_CURSOR,
    MALFORMED_BODY,
    UNAUTHENTICATED,
    FORBIDDEN,
    FOREIGN_HOST,
    THREAD_NOT_FOUND,
    NOT_FOUND,
    ARTIFACT_NOT_FOUND,
    METHOD_NOT_ALLOWED,
    NOT_APPLIED,
    CALL_NOT_OPEN,
    THREAD_CLOSING,
    NOT_FORKABLE,
    CHILD_TOO_DEEP,
    TOOL_NOT_IN_CATALOG,
    FILES_CHANGED_SINCE,
    NOTHING_TO_RESTORE,
    TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    RANGE_NOT_SATISFIABLE,
    INVALID_REQUEST,
    ARTIFACT_MISMATCH,
    ARTIFACT_MISSING,
    ARGUMENTS_DO_NOT_FIT,
    FORK_POINT,
    STATE_OUT_OF_REACH,
    UNSTORABLE,
    IDEMPOTENCY_CONFLICT,
    QUEUE_FULL,
    TOO_MANY_APPENDS,
    TOO_MANY_TRANSFERS,
    INTERNAL,
    STOPPING,
    OVERLOADED,
    VIEWS_UNAVAILABLE,
    VIEWS_BEHIND,
    ARTIFACTS_UNAVAILABLE,
    CATALOG_NOT_LOADED,
    LOG_UNAVAILABLE,
)

ALWAYS = (UNAUTHENTICATED, FORBIDDEN, FOREIGN_HOST, OVERLOADED, STOPPING, INTERNAL)
"""What every operation may answer."""
OF_READS = (VIEWS_UNAVAILABLE, INVALID_REQUEST)
"""What every operation that reads the views may answer."""
OF_BODIES = (MALFORMED_JSON, MALFORMED_KEY, TOO_LARGE, UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, UNSTORABLE)
"""What every operation with a JSON body may answer."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of one request."""

    type: ProblemType
    detail: str
    more: Mapping[str, JsonValue] = field(default_factory=dict)
    """Members beyond those of RFC 9457."""

    def body(self) -> dict[str, JsonValue]:
        """Return the members in the order in which they are written: those of RFC 9457 first."""
        own: dict[str, JsonValue] = {
            "type": TYPE_PREFIX + self.type.slug,
            "status": self.type.status,
            "title": self.type.title,
            "detail": self.detail,
        }
        # The second `own` keeps members of a problem, which may come from a tool, from replacing the type or status.
        return {**own, **self.more, **own}

    def response(self) -> Response:
        """Return the answer, with the headers that belong to this type of problem."""
        headers = {}
        if self.type.retry_after_seconds is not None:
            headers["retry-after"] = str(self.type.retry_after_seconds)
        if self.type is UNAUTHENTICATED:
            headers["www-authenticate"] = "Bearer"
        return Response(orjson.dumps(self.body()), self.type.status, headers, MEDIA_TYPE)


class ProblemError(ThreadlogError):
    """Ends a request with its problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.type.slug}: {problem.detail}")
        self.problem = problem


def no_such_thread() -> Problem:
    """Return the same for a thread that never existed and for one of another tenant, byte for byte.

    So the detail does not repeat the id.
    """
    return Problem(THREAD_NOT_FOUND, "There is no thread with this id.")
