"""What the API answers: the one function that writes answers, and the models of those that are about no thread.

The other models are in `thread_answers` and `turn_answers`.

Each operation names the model of its answer. Answers that are put together here are written through their model. Rows
of the views and the answers of commands are written as bytes by their rooms, since building a model of each row would
cost more than reading it; the tests hold every answer that they get to its model, those included.
"""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from starlette.responses import Response

from schemas.thread import Effect

JSON: Final = "application/json"

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""A time in RFC 3339, in UTC with milliseconds."""


def json_answer(answer: BaseModel | bytes, status: int = 200) -> Response:
    """Write an answer. `bytes` are JSON that has the form of the operation's model."""
    content = answer if isinstance(answer, bytes) else answer.model_dump_json()
    return Response(content, status, media_type=JSON)


class Answer(BaseModel):
    """The base of all models of answers. It forbids other fields, so that a test finds one that is not declared."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Position(Answer):
    """A place in the log."""

    partition: int
    offset: int


class CommandEvent(Answer):
    """A command records such an event."""

    id: str
    type: str
    """Type of the event, such as `input.submitted`."""
    seq: int | None = None
    """The event's place among the thread's records, from 1."""
    effect: Effect | None = None
    """What the record did: `applied`, or why it changed nothing."""
    reason: str | None = None
    """Why the record did not apply; null if it did."""


class CommandAnswer(Answer):
    """The result of a command. `seq`, `effect` and `reason` are present once its effect is known."""

    thread: str
    input: str | None = None
    """Id of the input."""
    files: int | None = None
    """How many files are restored."""
    plan_version: int | None = None
    """The version that was proposed or decided on."""
    events: list[CommandEvent]
    """The events that the command recorded, in order."""
    position: Position
    """The position for `at_least`: a read with it sees this command."""
    seq: int | None = None
    effect: Effect | None = None
    reason: str | None = None
    undecided: bool | None = None
    """The effect was not known in time: ask at the path `ask`, or send the command again with the same key."""
    ask: str | None = None
    """Path that answers with the effect once it is known."""


class ForkMade(Answer):
    """Where and how a fork was made."""

    parent: str
    """The thread that was forked."""
    seq: int
    """The settled record of the parent at which the fork was made."""
    open_turn: int | None
    """The turn of the parent that was open at this record; null if none was."""
    note: str | None
    """What the fork leaves out, and why; null if it leaves out nothing."""


class ForkAnswer(CommandAnswer):
    """The answer of a fork: `thread` is the new thread."""

    fork: ForkMade


class ChangedFile(Answer):
    """A file that a turn changed."""

    path: str
    """Path of the file, relative to the workspace."""
    status: Literal["created", "deleted", "modified"]
    before: str | None
    """sha256 of the content before the turn, as an artifact; null if the file did not exist."""
    after: str | None
    """sha256 of the content after the turn; null if the file was deleted."""
    mode: int | None
    """Permissions after the turn, as a number; null if they are not recorded."""
    calls: list[str]
    """The calls that changed the file, in order."""
    binary: bool
    """Whether a content is not text; it then has no diff."""
    cut: bool
    """Whether the diff is incomplete or missing because of its size."""
    missing: bool
    """Whether the artifact store lacks one of the contents."""
    diff: str
    """The unified diff, or a line that says why there is none."""


class DiffAnswer(Answer):
    """What a turn did to files."""

    thread: str
    turn: int
    files: list[ChangedFile]


class ArtifactAnswer(Answer):
    """An artifact that is stored."""

    sha256: str
    size: int
    """Size in bytes."""
    media_type: str
    """The media type of the first upload."""


class ImportAnswer(Answer):
    """An import and its progress."""

    id: str
    tool: Literal["claude-code", "codex"]
    """The tool that recorded the sessions."""
    status: Literal["waiting", "running", "done", "failed"]
    files: int
    """Number of session files, without their companions."""
    done: int
    """Number of session files that are finished."""
    problem: str | None
    """Why the import failed, or what interrupted it last; null if nothing did."""
    created_at: Time
    finished_at: Time | None


class ImportFileAnswer(Answer):
    """A file of an import."""

    number: int
    """Number of the file, in the order of the request."""
    path: str
    """Path of the file, as the request names it."""
    waits_for: str | None
    """The session that has to be imported first; the import then continues with this file."""
    report: dict[str, JsonValue]
    """What the file contains; see docs/import.md."""
    threads: list[dict[str, JsonValue]]
    """The threads of its sessions: source_id, thread, created, appended, parent."""


class ImportFilePage(Answer):
    files: list[ImportFileAnswer]
    next: int | None
    """`after` of the next page; null after the last page."""


class CommandRecord(Answer):
    """The effect of a command, as the views have it."""

    thread: str
    id: str
    """Id of the command's event."""
    type: str
    seq: int
    effect: Effect
    reason: str | None
    """Why the command did not apply; null if it did."""
    position: Position


class UsageEntry(Answer):
    """This counts the tokens of one day and model."""

    day: str
    """The day in UTC, such as `2026-11-29`."""
    model: str
    responses: int
    """Number of responses of the model."""
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    """The input tokens that the provider read from its cache."""
    reasoning_tokens: int
    """The output tokens that were reasoning."""


class UsagePage(Answer):
    data: list[UsageEntry]
    next_cursor: str | None


class ProblemAnswer(BaseModel):
    """A problem (RFC 9457). Some problems have further members, such as `errors` or `effect`."""

    model_config = ConfigDict(extra="allow")

    type: str
    """A URL that ends with the slug of the problem. Decide by it, not by the texts."""
    status: int
    title: str
    detail: str
    """What happened to this request, and what to do."""
