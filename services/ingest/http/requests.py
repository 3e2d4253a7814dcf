"""What clients send: the models of all request bodies. Unknown fields are refused, so that a misspelt one is noticed.

The models check shape and size of single fields, and which fields fit together. What depends on a limit of the
deployment or on the thread is checked in `commands`. Each limit below bounds something that is kept for ever: a record
of the log, a row of a view, or what every reader of the thread loads.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator

from schemas.config import Config, Frozen
from schemas.events import ArtifactItem, ContentItem, Count, Hash, InputMode, Positive, TextItem
from schemas.ids import NAME_PATTERN

TITLE_CHARACTERS_MAX = 500
LABELS_MAX = 64
LABEL_NAME_CHARACTERS_MAX = 64
LABEL_CHARACTERS_MAX = 256
NOTE_CHARACTERS_MAX = 4_000
TASKS_MAX = 1_000
TASK_INSTRUCTIONS_CHARACTERS_MAX = 20_000
ITEMS_MAX = 100
MEDIA_TYPE_CHARACTERS_MAX = 200
NAME_CHARACTERS_MAX = 500
SUMMARY_CHARACTERS_MAX = 4_000

Title = Annotated[str, Field(max_length=TITLE_CHARACTERS_MAX)]
LabelName = Annotated[str, Field(min_length=1, max_length=LABEL_NAME_CHARACTERS_MAX)]
Label = Annotated[str, Field(max_length=LABEL_CHARACTERS_MAX)]
Labels = Annotated[dict[LabelName, Label], Field(max_length=LABELS_MAX)]
Note = Annotated[str, Field(max_length=NOTE_CHARACTERS_MAX)]
Text = Annotated[str, Field(min_length=1)]
TaskId = Annotated[str, Field(pattern=NAME_PATTERN)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
"""A name of a model. It is short enough for the cursor of a page of usage, which contains it."""


class Body(Frozen):
    model_config = ConfigDict(use_attribute_docstrings=True)


class ConfigRequest(Config):
    """A configuration whose model may be left out; the thread then gets the default model of the service."""

    model: ModelName = ""


class NamedArtifact(Body):
    """An artifact that was uploaded before. Its size is read from the store."""

    type: Literal["artifact"]
    sha256: Hash
    media_type: Annotated[str, Field(min_length=1, max_length=MEDIA_TYPE_CHARACTERS_MAX)]
    name: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)] | None = None
    summary: Annotated[str, Field(max_length=SUMMARY_CHARACTERS_MAX)] | None = None
    """A text that the model is shown together with name, type and size."""


Item = Annotated[TextItem | NamedArtifact, Field(discriminator="type")]


class Content(Body):
    """What a person says: either one `text` or a list of `items`."""

    text: Text | None = None
    items: Annotated[tuple[Item, ...], Field(min_length=1, max_length=ITEMS_MAX)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.text is None) == (self.items is None):
            raise ValueError("give either text or items")
        return self

    def named(self) -> frozenset[str]:
        """Return the sha256 of every artifact that the items name."""
        return frozenset(item.sha256 for item in self.items or () if isinstance(item, NamedArtifact))

    def content(self, sizes: Mapping[str, int]) -> tuple[ContentItem, ...]:
        """Return the content as events record it. `sizes` has the sizes of the named artifacts, in bytes, by sha256."""
        if self.items is None:
            return (TextItem(text=self.text or ""),)
        return tuple(
            [
                item
                if isinstance(item, TextItem)
                else ArtifactItem(size=sizes[item.sha256], **item.model_dump(exclude={"type"}))
                for item in self.items
            ]
        )


class FirstInput(Content):
    pass


class CreateThread(Body):
    config: ConfigRequest | None = None
    title: Title | None = None
    labels: Labels = Field(default_factory=dict)
    input: FirstInput | None = None
    """The first input: it starts the first turn."""
    ephemeral: bool = False
    """Whether the thread is kept for at most an hour, on a separate topic, and leaves no history."""


class ImportedFile(Body):
    path: Annotated[str, Field(min_length=1, max_length=1_024)]
    """Path relative to the folder of all files. It links companions, such as `a/tool-results/x.txt`, to `a.jsonl`."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """sha256 of the artifact as which the file was uploaded."""
    size: Annotated[int, Field(ge=0, le=2**53 - 1)]
    companion: bool = False
    """Whether the file belongs to a session and is not a session itself."""


class CreateImport(Body):
    tool: Literal["claude-code", "codex"]
    """The tool that recorded the sessions."""
    files: Annotated[list[ImportedFile], Field(min_length=1, max_length=10_000)]


class PatchThread(Body):
    """A change of a thread. Fields that are left out stay as they are."""

    title: Title | None = None
    """The new title; null or an empty text removes the title."""
    labels: Labels | None = None
    """The new labels, which replace all labels; null removes them."""
    archived: bool | None = None
    config: dict[str, JsonValue] | None = None
    """A merge patch (RFC 7396) of the configuration, in force from the next turn."""


class SubmitInput(Content):
    mode: InputMode = "queue"
    expected_turn: Positive | None = None
    """The turn that has to be open, with mode `steer`; otherwise 409 with the reason. If the turn ends before one of
    its steps takes the input, the input is discarded.
    """

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.expected_turn is None or self.mode == "steer":
            return self
        why = {
            "queue": "an input that is queued waits for the next turn",
            "interrupt": "an interrupting input ends the open turn and starts the next; cancel the turn, then submit",
            "reject": "with `reject` no turn may be open",
        }
        raise ValueError(f"expected_turn needs the mode `steer`: {why[self.mode]}")


class WithdrawInput(Body):
    pass


class CancelTurn(Body):
    note: Note | None = None
    discard: bool = False
    """Whether steering inputs that no step has taken are discarded with the turn."""


class RestoreFiles(Body):
    pass


class CloseThread(Body):
    reason: Note | None = None


class ForkPlace(Body):
    """The place at which a thread is forked: either `seq` or `turn`."""

    seq: Positive | None = None
    """A record of the thread. If a step was open or had unsettled calls there, the newest seq before it is used."""
    turn: Positive | None = None
    """The fork begins after this turn. If the turn is open, the fork has what is settled of it."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.seq is None) == (self.turn is None):
            raise ValueError("give either seq or turn")
        return self


class ForkThread(Body):
    at: ForkPlace | None = None
    """The place of the fork; without it, the newest settled record."""
    title: Title | None = None
    labels: Labels = Field(default_factory=dict)
    config: dict[str, JsonValue] | None = None
    """A merge patch (RFC 7396) of the configuration that the thread had there."""
    input: FirstInput | None = None
    """The first input of the fork: it starts its first turn."""


class CreateChild(Body):
    title: Title | None = None
    labels: Labels = Field(default_factory=dict)
    config: dict[str, JsonValue] | None = None
    """A merge patch (RFC 7396) of the parent's configuration."""
    input: FirstInput | None = None
    """The first input: it starts the first turn."""


class RewindThread(Body):
    to_turn: Count
    """The last turn that stays in the context; 0 removes all turns."""


class CompactThread(Body):
    pass


class DecideCall(Body):
    decision: Literal["approve", "deny"]
    call_hash: Hash
    """The hash of the call that was looked at, as `tool_call.approval_requested` shows it."""
    reason: Note | None = None
    """Why the call is denied. The model is shown it."""
    scope: Literal["call", "turn", "thread"] = "call"
    """With `turn` or `thread`, the same call is approved again whenever it is proposed there."""
    tool: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """With the scope `turn` or `thread`, every call of this tool is approved instead of the same call only."""
    args: dict[str, JsonValue] | None = None
    """Approve with these arguments instead of those that were proposed."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.decision == "deny" and (self.scope != "call" or self.tool is not None or self.args is not None):
            raise ValueError("scope, tool and args belong to an approval")
        if self.tool is not None and self.scope == "call":
            raise ValueError("tool needs the scope turn or thread")
        return self


class PostResult(Body):
    outcome: Literal["succeeded", "failed"]
    result: JsonValue = None


class ResolveCall(Body):
    decision: Literal["succeeded", "failed", "again", "abandoned"]
    attempt: Count
    """The attempt that was looked at, as `GET /v1/unknown-calls` shows it. A later attempt has to be settled anew."""
    note: Annotated[str, Field(min_length=1, max_length=NOTE_CHARACTERS_MAX)]
    """How the outcome is known. It is recorded with the caller, and shown to the model if there is no result."""
    result: JsonValue = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.result is not None and self.decision in {"again", "abandoned"}:
            raise ValueError("a result belongs to succeeded or failed")
        return self


class PlannedTask(Body):
    id: TaskId
    """A short name. A later version keeps the task if it has a task with this name."""
    title: Annotated[str, Field(min_length=1, max_length=TITLE_CHARACTERS_MAX)]
    depends_on: Annotated[tuple[TaskId, ...], Field(max_length=TASKS_MAX)] = ()
    """Tasks that have to succeed first. This task is shown their results."""
    instructions: Annotated[str, Field(max_length=TASK_INSTRUCTIONS_CHARACTERS_MAX)] | None = None
    """What the task has to do, and what it has to answer."""


class ProposePlan(Body):
    tasks: Annotated[tuple[PlannedTask, ...], Field(min_length=1, max_length=TASKS_MAX)]
    version: Positive | None = None
    """The version that this plan becomes: one more than the last. Without it, the plan becomes the next version."""


class DecidePlan(Body):
    decision: Literal["approve", "reject"]
    reason: Annotated[str, Field(min_length=1, max_length=NOTE_CHARACTERS_MAX)] | None = None
    """Why the version is rejected. The model that proposed it is shown it."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.decision == "reject") != (self.reason is not None):
            raise ValueError("a rejection has a reason, an approval none")
        return self
