"""What became of a call: from the record of its result, and what the tool kept beside what the model was shown."""

import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from pydantic import JsonValue

from schemas.events import TaskStatus
from services.importer.claude_code.records import INTERRUPTED, first_text, milliseconds, result_as_shown, text_of
from services.importer.companions import Companions
from services.importer.lines import Record
from services.importer.model import Blob, CallEnd, Change, Counts, Origin, PlanTask

_EXIT_CODE = re.compile(r"(?:Error: )?Exit code (\d{1,10})(?:\n|$)")
_PERSISTED = re.compile(r"<persisted-output>[^\n]*\n[^\n]*saved to: ([^\n]{1,4096})")
_REFUSED = "The user doesn't want to"
_GIVEN_REASONS = ("the user said:", "following reason")
_LOST = "[Tool call interrupted"
_TIMED_OUT = ("Command timed out", "Error: Command timed out")
_STATUSES: dict[str, TaskStatus] = {
    "pending": "pending",
    "in_progress": "running",
    "completed": "succeeded",
    "cancelled": "cancelled",
}
PLAN_TITLE_MAX = 200
"""Characters of a plan's title, or of a reason, that are kept."""


@dataclass(slots=True)
class Result:
    """This became of a call."""

    end: CallEnd
    origin: Origin
    shown: JsonValue = None
    blobs: tuple[Blob, ...] = ()
    whole: Blob | None = None
    exit_code: int | None = None
    approval: Literal["unrecorded", "approved", "denied"] = "unrecorded"
    decided_by: str | None = None
    reason: str | None = None
    ended_ms: int | None = None
    changes: tuple[Change, ...] = ()
    agent: str | None = None
    """Id of the sub-agent that worked for it."""
    task: str | None = None
    """Id of what continues in the background. A notice tells its end."""
    kept: Record = field(default_factory=dict)
    """What the tool kept of it, for plans."""


def result_of(record: Record, block: Record, line: int, counts: Counts, companions: Companions) -> Result:
    """Return what became of a call. `block` is the call's own part of `record`."""
    shown, blobs = result_as_shown(block.get("content"), counts)
    text = first_text(shown)
    failed = block.get("is_error") is True
    result = Result("failed" if failed else "succeeded", Origin(line), shown, blobs)
    result.ended_ms = milliseconds(record)
    _judge(result, record, text)
    if failed:
        result.exit_code = _exit_code(text)
        return result
    values = record.get("toolUseResult")
    if isinstance(values, dict) and _is_alone(record):
        result.kept = values
    else:
        values = {}
    result.whole = _whole(values, text, companions)
    if values:
        result.changes = _changes(values)
        result.agent = text_of(values, "agentId")
        result.task = _background(values)
    return result


def _is_alone(record: Record) -> bool:
    """Return whether what the tool kept can only be of one call."""
    content = record["message"]["content"]
    results = (block for block in content if isinstance(block, dict) and block.get("type") == "tool_result")
    return len(content) == 1 or sum(1 for _ in results) == 1


def _exit_code(text: str) -> int | None:
    found = _EXIT_CODE.match(text)
    return int(found[1]) if found else None


def _judge(result: Result, record: Record, text: str) -> None:
    """Judge approval and denial as far as they were recorded, and what was interrupted, lost or out of time. What the
    session cannot tell apart is called cancelled, and its origin says so.
    """
    decision = record.get("permissionDecision")
    if isinstance(decision, dict):
        match decision.get("decision"):
            case "accept":
                result.approval, result.decided_by = "approved", _decided_by(decision)
            case "reject":
                _deny(result, _decided_by(decision), text)
                return
    denial = text_of(record, "toolDenialKind")
    if denial == "interrupted" or text.startswith(_LOST):
        # Written when the session was taken up again: its time says nothing of the call.
        result.end, result.reason, result.ended_ms = "unknown", text or "interrupted", None
    elif result.end == "succeeded":
        kept = record.get("toolUseResult")
        if isinstance(kept, dict) and kept.get("interrupted") is True:
            result.end = "cancelled"
    elif text.startswith(_TIMED_OUT):
        result.end, result.reason = "timed_out", text[:PLAN_TITLE_MAX]
    elif denial is not None and denial != "user-rejected":
        _deny(result, f"policy:{denial[:60]}", text)
    elif denial is not None or text.startswith((_REFUSED, INTERRUPTED)):
        # The tool writes the same for a call that a person refused and one that an interruption met while it ran.
        if any(given in text for given in _GIVEN_REASONS):
            _deny(result, "user:local", text)
        else:
            result.end, result.reason = "cancelled", text
            result.origin = Origin(result.origin.line, "refused or interrupted: the session says the same of both")


def _deny(result: Result, by: str | None, text: str) -> None:
    result.end, result.approval, result.decided_by, result.reason = "denied", "denied", by, text


def _decided_by(decision: Record) -> str | None:
    """Return who decided, or None."""
    source = text_of(decision, "source")
    if source is None:
        return None
    if source.startswith("user"):
        return "user:local"
    detail = text_of(decision, "reasonCode") or text_of(decision, "reasonType")
    return f"policy:{(detail or source)[:60]}"


def _whole(values: Record, text: str, companions: Companions) -> Blob | None:
    """Return the whole output where the tool kept it: in a file beside the session, or in the record."""
    path = text_of(values, "persistedOutputPath")
    if path is None and text.startswith("<persisted-output>") and (found := _PERSISTED.match(text)) is not None:
        path = found[1]
    if path is None:
        return None
    companion = companions.get(f"tool-results/{path.replace(chr(92), '/').rsplit('/', 1)[-1]}")
    if companion is not None:
        return companion
    printed = text_of(values, "stdout")
    return Blob(printed.encode(errors="replace"), "text/plain") if printed else None


def _background(values: Record) -> str | None:
    """Return the id of what continues in the background, or None."""
    if values.get("isAsync") is True or values.get("status") == "async_launched":
        return text_of(values, "agentId")
    return text_of(values, "backgroundTaskId")


# Files


def _changes(values: Record) -> tuple[Change, ...]:
    """Return the changed file. Its contents are there only where the session has both whole, or the file was
    created.
    """
    if "structuredPatch" not in values and "updated_file" not in values:
        return ()
    path = text_of(values, "filePath") or text_of(values, "notebook_path")
    if path is None:
        return ()
    before = next((values[n] for n in ("originalFile", "originalFileContents", "original_file") if n in values), None)
    after = values.get("content", values.get("updated_file"))
    if after is None and isinstance(before, str):
        after = _edited(before, values)
    created = values.get("type") == "create" or (before == "" and values.get("oldString") == "")
    if not isinstance(after, str) or not (created or isinstance(before, str)):
        return (Change(path),)
    return (Change(path, None if created else _file(before, path), _file(after, path)),)


def _edited(before: str, values: Record) -> str | None:
    """Return the content after the edits, done again; None where the person changed them or one does not fit."""
    if values.get("userModified") is True:
        return None
    edits = values.get("edits")
    for edit in edits if isinstance(edits, list) else [_in_words_of_many(values)]:
        old, new = (edit.get("old_string"), edit.get("new_string")) if isinstance(edit, dict) else (None, None)
        if not isinstance(old, str) or not isinstance(new, str) or not old or old not in before:
            return None
        everywhere = edit.get("replace_all") is True
        if not everywhere and before.count(old) > 1:
            return None
        before = before.replace(old, new)
    return before


def _in_words_of_many(values: Record) -> Record:
    """Return a single edit in the form that several have."""
    return {
        "old_string": values.get("oldString"),
        "new_string": values.get("newString"),
        "replace_all": values.get("replaceAll"),
    }


def _file(content: Any, path: str) -> Blob:
    return Blob(str(content).encode(errors="replace"), "text/plain", PurePath(path.replace("\\", "/")).name or None)


# Plans


class Tasks:
    """The to-do list of one thread, as calls that succeeded wrote it."""

    def __init__(self) -> None:
        self._tasks: dict[str, PlanTask] = {}

    def after(self, tool: str, args: Record, kept: Record) -> tuple[PlanTask, ...] | None:
        """Return the whole list if the call wrote it, None for any other call."""
        match tool:
            case "TodoWrite":
                todos = kept.get("newTodos", args.get("todos"))
                self._tasks = {task.id: task for task in _todos(todos)}
            case "TaskCreate":
                created = kept.get("task")
                name = _id(created.get("id")) if isinstance(created, dict) else None
                title = text_of(args, "subject") or (text_of(created, "subject") if isinstance(created, dict) else None)
                if name is None or title is None:
                    return None
                self._tasks[name] = PlanTask(name, title, "pending")
            case "TaskUpdate":
                return tuple(self._tasks.values()) if self._update(args) else None
            case "ExitPlanMode":
                plan = text_of(args, "plan") or text_of(kept, "plan")
                if plan is None:
                    return None
                title = next((line for part in plan.splitlines() if (line := part.strip("# \t"))), "plan")
                self._tasks = {"plan": PlanTask("plan", title[:PLAN_TITLE_MAX], "pending")}
            case _:
                return None
        return tuple(self._tasks.values())

    def _update(self, args: Record) -> bool:
        """Apply an update, and return whether the task exists."""
        name = _id(args.get("taskId"))
        task = self._tasks.get(name) if name is not None else None
        if name is None or task is None:
            return False
        if args.get("status") == "deleted":
            del self._tasks[name]
            return True
        status = _STATUSES.get(str(args.get("status")), task.status)
        self._tasks[name] = PlanTask(name, text_of(args, "subject") or task.title, status)
        return True


def _todos(todos: Any) -> list[PlanTask]:
    tasks = []
    for number, todo in enumerate(todos if isinstance(todos, list) else [], start=1):
        title = text_of(todo, "content") if isinstance(todo, dict) else None
        if title is not None:
            name = _id(todo.get("id")) or str(number)
            tasks.append(PlanTask(name, title, _STATUSES.get(str(todo.get("status")), "pending")))
    return tasks


def _id(value: Any) -> str | None:
    return str(value)[:200] if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None
