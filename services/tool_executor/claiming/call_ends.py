"""What is appended about the end of an attempt."""

import pydantic
import structlog

from schemas.events import Artifact, Event, FileChange, ToolCallFinished, ToolCallLost, ToolCallStarted
from services.chassis.storable import storable_json, storable_text
from services.tool_executor.claiming.claim import Attempt
from services.tool_executor.tools import ToolEnd

EVIDENCE_CHARACTERS_MAX = 2_000

log = structlog.get_logger()


def end_events(attempt: Attempt, started: ToolCallStarted, end: ToolEnd) -> list[Event]:
    """With the claim before it where the call is pure: that one ran without it."""
    events: list[Event] = [started] if attempt.pure else []
    if end.outcome == "lost" or end.outcome == "cancelled":  # noqa: PLR1714  # narrows the type
        # One that was killed midway: nobody saw whether its effect happened.
        evidence = end.evidence or ("killed midway" if end.outcome == "cancelled" else "its end was not seen")
        evidence = storable_text(evidence)[:EVIDENCE_CHARACTERS_MAX]
        return [
            *events,
            ToolCallLost(call=attempt.call, attempt=attempt.attempt, claim=attempt.claim, evidence=evidence),
        ]
    return [
        *events,
        ToolCallFinished(
            call=attempt.call,
            attempt=attempt.attempt,
            claim=attempt.claim,
            outcome=end.outcome,
            result=storable_json(end.result),
            changes=_file_changes(end),
            artifacts=_artifacts(end),
            milliseconds=int(1000 * end.seconds),
        ),
    ]


def _artifacts(end: ToolEnd) -> tuple[Artifact, ...]:
    return tuple(
        Artifact.model_validate({key: storable_json(value) for key, value in named.items()}) for named in end.artifacts
    )


def _file_changes(end: ToolEnd) -> tuple[FileChange, ...]:
    """What a tool says of files is no reason to lose its end."""
    try:
        return tuple(FileChange.model_validate(change) for change in end.changes)
    except pydantic.ValidationError as error:
        log.warning("file_changes_refused", error=str(error)[:500])
        return ()
