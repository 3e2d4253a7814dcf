"""What clients send: the shapes of request bodies. Unknown fields are refused, so that a misspelt one is noticed."""

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
"""Short enough for a page of usage to name it in its cursor."""


class Body(Frozen):
    model_config = ConfigDict(use_attribute_docstrings=True)


class ConfigRequest(Config):
    """A configuration whose model may be left out: the service has a default."""

    model: ModelName = ""


class NamedArtifact(Body):
    """An artifact that was uploaded before; its size is the store's."""

    type: Literal["artifact"]
    sha256: Hash
    media_type: Annotated[str, Field(min_length=1, max_length=MEDIA_TYPE_CHARACTERS_MAX)]
    name: Annotated[str, Field(min_length=1, max_length=NAME_CHARACTERS_MAX)] | None = None
    summary: Annotated[str, Field(max_length=SUMMARY_CHARACTERS_MAX)] | None = None
    """What a model is shown of it beside name, type and size."""


Item = Annotated[TextItem | NamedArtifact, Field(discriminator="type")]


class Content(Body):
    """What a person says: one `text`, or a list of `items`."""

    text: Text | None = None
    items: Annotated[tuple[Item, ...], Field(min_length=1, max_length=ITEMS_MAX)] | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.text is None) == (self.items is None):
            raise ValueError("give either text or items")
        return self

    def named(self) -> frozenset[str]:
        """The artifacts."""
        return frozenset(item.sha256 for item in self.items or () if isinstance(item, NamedArtifact))

    def content(self, sizes: Mapping[str, int]) -> tuple[ContentItem, ...]:
        """`sizes`: of the artifacts that it names."""
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
    """Whether the thread lives for an hour at most, on a topic of its own, and leaves no history."""


class ImportedFile(Body):
    path: Annotated[str, Field(min_length=1, max_length=1_024)]
    """Relative to a folder of all: companions are found by it, such as `a/tool-results/x.txt` beside `a.jsonl`."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """sha256 of the artifact as which the file was uploaded."""
    size: Annotated[int, Field(ge=0, le=2**53 - 1)]
    companion: bool = False
    """Whether it is no session, but belongs to one."""


class CreateImport(Body):
    tool: Literal["claude-code", "codex"]
    """The tool that recorded the sessions."""
    files: Annotated[list[ImportedFile], Field(min_length=1, max_length=10_000)]


class PatchThread(Body):
    """What is left out stays as it is."""

    title: Title | None = None
    """null or an empty text removes it."""
    labels: Labels | None = None
    """Replaces all labels; null removes them."""
    archived: bool | None = None
    config: dict[str, JsonValue] | None = None
    """A merge patch (RFC 7396) of the configuration, in force from the next turn."""


class SubmitInput(Content):
    mode: InputMode = "queue"
    expected_turn: Positive | None = None
    """With mode `steer`: only where this turn is open when the input lands, otherwise 409 with the reason. Where the
    turn ends before one of its steps takes the input, it is discarded.
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
    """Whether steering inputs that no step took are dropped with the turn."""


class RestoreFiles(Body):
    pass


class CloseThread(Body):
    reason: Note | None = None


class ForkPlace(Body):
    """Either of both."""

    seq: Positive | None = None
    """A record of the thread. Where a step was under way, or its calls were not settled, the newest seq before that."""
    turn: Positive | None = None
    """The end of this turn; of a turn that is open, what is settled of it."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.seq is None) == (self.turn is None):
            raise ValueError("give either seq or turn")
        return self


class ForkThread(Body):
    at: ForkPlace | None = None
    """Left out: at the newest settled record."""
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
    """The last turn that stays in the context; 0 for none."""


class CompactThread(Body):
    pass


class DecideCall(Body):
    decision: Literal["approve", "deny"]
    call_hash: Hash
    """The hash of the call that was looked at, as `tool_call.approval_requested` shows it."""
    reason: Note | None = None
    """Why it is denied; the model is told."""
    scope: Literal["call", "turn", "thread"] = "call"
    """With `turn` or `thread`, the same call is approved whenever it comes again."""
    tool: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """With scope `turn` or `thread`: every call of this tool, instead of the same call."""
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
    """The attempt that was looked at, as `GET /v1/unknown-calls` shows it: a later one is another question."""
    note: Annotated[str, Field(min_length=1, max_length=NOTE_CHARACTERS_MAX)]
    """Why: how it is known. Recorded with who said so, and told to the model where there is no result."""
    result: JsonValue = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.result is not None and self.decision in {"again", "abandoned"}:
            raise ValueError("a result belongs to succeeded or failed")
        return self


class PlannedTask(Body):
    id: TaskId
    """A short name. A later version keeps the task by naming it again."""
    title: Annotated[str, Field(min_length=1, max_length=TITLE_CHARACTERS_MAX)]
    depends_on: Annotated[tuple[TaskId, ...], Field(max_length=TASKS_MAX)] = ()
    """Tasks that have to succeed before; their results are told to this one."""
    instructions: Annotated[str, Field(max_length=TASK_INSTRUCTIONS_CHARACTERS_MAX)] | None = None
    """What to do, and what to answer."""


class ProposePlan(Body):
    tasks: Annotated[tuple[PlannedTask, ...], Field(min_length=1, max_length=TASKS_MAX)]
    version: Positive | None = None
    """The one that this is to be: one more than the last. Left out, it is the next."""


class DecidePlan(Body):
    decision: Literal["approve", "reject"]
    reason: Annotated[str, Field(min_length=1, max_length=NOTE_CHARACTERS_MAX)] | None = None
    """Why it is rejected; the model that proposed it is told."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.decision == "reject") != (self.reason is not None):
            raise ValueError("a rejection has a reason, an approval none")
        return self
