"""`python -m reference.events` writes the event reference (`docs/events.md`) and the schemas (`schemas/json/`) from
the models, the transition table and the examples. A test keeps them up to date.

`python -m reference.events release` adds what is not frozen yet to `schemas/json/released.json`: from then on a test
holds each of those versions to the fingerprints of its schema and its example. Only words may still change.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, JsonValue

from schemas import config, events
from schemas.canonical import canonical_json
from schemas.events import EVENTS, Event, cloudevents_type
from schemas.other_topics.effects import EFFECT_TYPE, ThreadEffect
from schemas.thread import TRANSITIONS

ROOT = Path(__file__).parents[1]


class Meaning(NamedTuple):
    needs: str
    """What must hold in the folded state for the event to take effect."""
    effect: str


MEANINGS: Mapping[str, Meaning] = {
    "thread.created": Meaning(
        "There is no such thread.",
        "The thread exists, idle or importing.",
    ),
    "thread.import_started": Meaning(
        "The thread is idle, and nothing live came since its last import.",
        "The thread is importing: of turn, step and call events only the importer's apply, and nothing is "
        "decided, claimed or timed.",
    ),
    "thread.import_ended": Meaning(
        "The thread is importing, from this source.",
        "An open turn is interrupted, unfinished calls are unknown, inputs that no turn took are discarded. The "
        "base of the context is this record.",
    ),
    "thread.configured": Meaning(
        "The thread exists, is not closed or importing; the patched configuration is valid.",
        "The patch is merged (RFC 7396), in force from the next turn.",
    ),
    "thread.described": Meaning(
        "The thread exists and is not closed.",
        "Title and labels change.",
    ),
    "thread.archived": Meaning(
        "The thread exists, is not closed and not archived.",
        "The flag is set.",
    ),
    "thread.unarchived": Meaning(
        "The thread is archived and not closed.",
        "The flag is cleared.",
    ),
    "thread.rewound": Meaning(
        "No turn is open, and the turn exists. While importing: by the importer.",
        "Later turns leave the model's context, and summaries that may speak of them; they stay in history. The "
        "base of the context is this record.",
    ),
    "thread.close_requested": Meaning(
        "The thread is not closing or closed.",
        "No new input or turn; the open turn is cancelling; the queue is discarded; an import ends.",
    ),
    "thread.closed": Meaning(
        "The thread is closing and no turn is open.",
        "The end; unknown calls can still be resolved.",
    ),
    "input.submitted": Meaning(
        "The input id is not remembered, whoever writes it; the thread is not closing; the expected turn is open "
        "if one is given; mode `reject`: no turn is open and the queue is empty.",
        "The input joins the queue, and releases a held one. Mode `interrupt` also cancels the turn that is open "
        "where it lands. One with `expected_turn` that its turn never takes is discarded with the turn's end. One "
        "with a `call`, which `steer` refuses, gets a turn of its own.",
    ),
    "input.withdrawn": Meaning(
        "The input is still queued.",
        "It leaves the queue.",
    ),
    "turn.started": Meaning(
        "No turn is open; the thread is not closing; the turn is the last + 1; the inputs are queued and not "
        "held; `config` and `base` are the folded ones.",
        "The turn is open, takes the inputs and pins the configuration.",
    ),
    "turn.cancel_requested": Meaning(
        "The turn is open and not cancelling yet.",
        "It is cancelling: every call that is neither running nor unknown is settled as cancelled (unknown if it "
        "may have run), approvals are void, later claims no-ops. Reason `recovery` holds what is queued until the "
        "next input; `discard` drops steering inputs.",
    ),
    "turn.recovered": Meaning(
        "The turn is open.",
        "None: audit of a takeover.",
    ),
    "turn.ended": Meaning(
        "The turn is open, no call of it is running or repeatable, unknown ones are named, and `follows` is equal. "
        "Besides: it is cancelling and the outcome is not completed; or no step is open (completed: the last step "
        "finished) and every call is settled or unknown.",
        "The turn is closed, and an open step with it.",
    ),
    "step.started": Meaning(
        "The turn is open and not cancelling, `follows` is equal, its calls are all settled (in an imported turn: "
        "or unknown). Either the step is "
        "the last + 1 with attempt 1, and none is open or failed; or it is the open or failed one with attempt + "
        "1 and the same inputs.",
        "The step is open. Attempt 1 takes the steering inputs that it lists.",
    ),
    "step.finished": Meaning(
        "The step is open, and `started` is the data hash of a start of it that took effect, of any attempt.",
        "The step is closed; its calls are proposed (while cancelling: cancelled at once).",
    ),
    "step.failed": Meaning(
        "The step is open, and `started` is its latest attempt.",
        "The step is failed and may be started again; counts as a try unless handed over.",
    ),
    "tool_call.approval_requested": Meaning(
        "The call is proposed, with this call_hash.",
        "It waits for a person.",
    ),
    "tool_call.approved": Meaning(
        "The call is proposed or waiting, with this call_hash.",
        "It is approved; an edited call_hash is the one in force. Scope `turn` or `thread` approves later calls too.",
    ),
    "tool_call.denied": Meaning(
        "The call is proposed or waiting, with this call_hash.",
        "It is settled as denied.",
    ),
    "tool_call.approval_expired": Meaning(
        "The call is waiting, with this call_hash.",
        "It is settled as expired.",
    ),
    "tool_call.dispatched": Meaning(
        "The call is approved, with this call_hash, or repeatable; the attempt is the last + 1; its turn is not "
        "cancelling.",
        "An executor may claim it. In the pools `client` and `thread` this is the claim: running from here, no lease.",
    ),
    "tool_call.started": Meaning(
        "The call is dispatched at this attempt, and nobody has claimed it.",
        "It is running, under this claim.",
    ),
    "tool_call.finished": Meaning(
        "The call is running under that claim; or it is unknown or was lost under it and no later attempt has "
        "started; or it is pure: then any attempt, the first result wins.",
        "It is settled. `not_started`: repeatable unless `last`, cancelled while cancelling, unknown if an "
        "earlier attempt may have run.",
    ),
    "tool_call.lost": Meaning(
        "The call is dispatched or running at this attempt, and `claim` is the one in force, or none where there "
        "is none.",
        "Never claimed: as `not_started`. Else by effect class: pure and idempotent calls are repeatable unless "
        "`last` or cancelling; otherwise unknown (pure: failed, while cancelling cancelled).",
    ),
    "tool_call.resolved": Meaning(
        "The call is unknown at that attempt (0: it was imported unfinished); `again`: its turn is open and not "
        "cancelling.",
        "It is settled, or repeatable, even after a `last` attempt.",
    ),
    "context.compaction_requested": Meaning(
        "No step is open, and no compaction is asked for already. Of a runtime: `base` and `turn` are the folded ones, "
        "and none has failed in this turn.",
        "A compaction is asked for.",
    ),
    "context.compacted": Meaning(
        "No step is open and no call of the open turn holds it up; `base` is the folded one; `through_seq` is not "
        "before it and before this record.",
        "The summary stands for the items up to `through_seq`. The base of the context is this record.",
    ),
    "context.compaction_failed": Meaning(
        "A compaction is asked for, by this request and on this `base`.",
        "The request is answered: the context stays as it is. A runtime asks by itself again in the next turn.",
    ),
    "plan.proposed": Meaning(
        "The thread is not closing, the version is the last + 1, and the tasks are a graph without cycles; `call`, "
        "where it is given, runs and has proposed no version before.",
        "The version waits for an answer; one that waited before waits no more.",
    ),
    "plan.approved": Meaning(
        "That version waits.",
        "It is in force: tasks kept by id go on, those that failed or were cancelled begin anew, new ones are "
        "pending, the others are cancelled.",
    ),
    "plan.rejected": Meaning(
        "That version waits.",
        "It waits no more.",
    ),
    "task.updated": Meaning(
        "That version is in force, or `child` works on the task in the one that is; and the task may move so.",
        "The task has the status.",
    ),
    "artifact.recorded": Meaning(
        "The thread exists.",
        "None: a reference.",
    ),
    "skill.loaded": Meaning(
        "The thread exists and is not closed or importing; this version of the skill is not loaded.",
        "The thread remembers the version, so that its folder is there for every later call.",
    ),
}

INTRODUCTION = """# Events

Made by `python -m reference.events` from the models, the transition table and the examples; do not edit.

Every record of `thread-events` is one of these events. The CloudEvents type is `dev.threadlog.<kind>.v<version>`, the
value is the data below as canonical JSON (RFC 8785), absent fields are not written, and unknown fields are refused. An
event takes effect where what it *needs* holds in the folded state; otherwise it is a no-op with a reason. *Appended by*
names who writes it; the fold does not check that. A service's event id is derived from tenant, thread, kind and the
fields named under *identity*; a client's command has an id of its own.

| type | is |
|---|---|
| `Positive`, `Count`, `Milliseconds` | an integer from 1, from 0, from 0, up to 2^53 - 1; times are since 1970, UTC |
| `Id` | text of 1 to 200 characters |
| `Hash` | a sha256: 64 lower-case hex characters |
| `Call` | a tool call, `turn.step.index`, such as `3.1.0` |
| `JsonValue` | any JSON |
"""


class Field(NamedTuple):
    name: str
    annotation: str
    default: str | None
    doc: str


def event_reference(examples: Mapping[str, str]) -> str:
    """Return the page. `examples` has the example of each CloudEvents type, as JSON."""
    fields = _fields_by_class()
    parts = [INTRODUCTION, _overview()]
    parts += [_event_section(event, fields[event.__name__], examples[cloudevents_type(event)]) for event in EVENTS]
    parts.append("## Parts of events\n")
    event_names = {event.__name__ for event in EVENTS}
    for name, of_class in fields.items():
        if name not in event_names and of_class:
            parts.append(f"### {name}\n\n{_field_table(of_class)}")
    parts.append(_aliases())
    return "\n".join(parts)


def json_schema(event: type[Event]) -> str:
    return _json_schema(cloudevents_type(event), event)


def effect_schema() -> str:
    return _json_schema(EFFECT_TYPE, ThreadEffect)


def _json_schema(name: str, model: type[BaseModel]) -> str:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name}
    return json.dumps(schema | model.model_json_schema(), indent=2, ensure_ascii=False) + "\n"


def _overview() -> str:
    rows = [
        f"| [`{event.kind}`](#{_anchor(event)}) | {TRANSITIONS[event].by} | {MEANINGS[event.kind].effect} |"
        for event in EVENTS
    ]
    return "\n".join(["| event | appended by | effect |", "|---|---|---|", *rows]) + "\n"


def _anchor(event: type[Event]) -> str:
    return event.kind.replace(".", "")


def _event_section(event: type[Event], fields: list[Field], example: str) -> str:
    transition, meaning = TRANSITIONS[event], MEANINGS[event.kind]
    lines = [
        f"## {event.kind}\n",
        f"`{cloudevents_type(event)}`, appended by {transition.by}.\n",
        f"*Needs:* {meaning.needs}\n",
        f"*Effect:* {meaning.effect}\n",
    ]
    if event.identity:
        lines.append(f"*Identity:* {', '.join(f'`{name}`' for name in event.identity)}.\n")
    if transition.while_importing != "nobody":
        lines.append(f"*While the thread is being imported:* by {transition.while_importing}.\n")
    if fields:
        lines.append(_field_table(fields))
    lines.append(f"```json\n{example.strip()}\n```\n")
    return "\n".join(lines)


def _field_table(fields: list[Field]) -> str:
    rows = ["| field | type | |", "|---|---|---|"]
    for field in fields:
        annotation = field.annotation.replace("|", "\\|")
        default = "" if field.default in {None, "None"} else f"Default: `{field.default}`. "
        rows.append(f"| `{field.name}` | `{annotation}` | {default}{field.doc} |")
    return "\n".join(rows) + "\n"


def _aliases() -> str:
    """The names of closed sets and unions, as the source defines them."""
    rows = ["### Names\n", "| name | is one of |", "|---|---|"]
    for module in (config, events):
        for node in ast.parse(inspect.getsource(module)).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
                    text = ast.unparse(value).replace("|", "\\|")
                    if text.startswith("Literal") or name.endswith("Item"):
                        rows.append(f"| `{name}` | `{text}` |")
                case _:
                    pass
    return "\n".join(rows) + "\n"


def _fields_by_class() -> dict[str, list[Field]]:
    classes: dict[str, list[Field]] = {}
    for module in (events, config):
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = list(_fields(node))
    return classes


def _fields(of_class: ast.ClassDef) -> Iterator[Field]:
    """The annotated names of a class, each with the text that stands below it."""
    for node, after in zip(of_class.body, [*of_class.body[1:], None], strict=True):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=value):
                kind = ast.unparse(annotation)
                if not kind.startswith("ClassVar"):
                    default = None if value is None else ast.unparse(value)
                    yield Field(name, kind, default, _text(after))
            case _:
                pass


def _text(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            return " ".join(text.split())
        case _:
            return ""


def fingerprint(document: str) -> str:
    """Return the sha256 over canonical JSON without descriptions: words may change, the rest may not."""
    return sha256(canonical_json(_without_descriptions(json.loads(document)))).hexdigest()


def _without_descriptions(value: JsonValue) -> JsonValue:
    match value:
        case dict():
            kept = {name: item for name, item in value.items() if name != "description" or not isinstance(item, str)}
            return {name: _without_descriptions(item) for name, item in kept.items()}
        case list():
            return [_without_descriptions(item) for item in value]
        case _:
            return value


def fingerprints(folder: Path) -> dict[str, dict[str, str]]:
    """Return the fingerprints of every version that has a file, older ones included."""
    return {
        path.name.removesuffix(".example.json"): {
            "example": fingerprint(path.read_text()),
            "schema": fingerprint(path.with_name(path.name.replace(".example.", ".schema.")).read_text()),
        }
        for path in sorted(folder.glob("*.example.json"))
    }


def read_examples(folder: Path) -> dict[str, str]:
    """Return the examples of the newest versions by CloudEvents type."""
    return {cloudevents_type(event): (folder / f"{_stem(event)}.example.json").read_text() for event in EVENTS}


def _stem(event: type[Event]) -> str:
    return f"{event.kind}.v{event.version}"


def write(root: Path) -> None:
    folder = root / "schemas" / "json"
    for event in EVENTS:
        (folder / f"{_stem(event)}.schema.json").write_text(json_schema(event))
    of_effects = folder / "thread-effects"
    of_effects.mkdir(exist_ok=True)
    (of_effects / "effect.v1.schema.json").write_text(effect_schema())
    (root / "docs" / "events.md").write_text(event_reference(read_examples(folder)))


def release(root: Path) -> None:
    folder = root / "schemas" / "json"
    manifest = folder / "released.json"
    frozen = fingerprints(folder) | json.loads(manifest.read_text())
    manifest.write_text(json.dumps(frozen, indent=2, sort_keys=True) + "\n")


def main(arguments: list[str]) -> None:
    (release if arguments == ["release"] else write)(ROOT)


if __name__ == "__main__":  # pragma: no cover
    main(sys.argv[1:])
