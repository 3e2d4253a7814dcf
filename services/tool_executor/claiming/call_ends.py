"""What is appended about the end of an attempt: pure.

Whatever a tool returns, its end must fit into an event: the end is the only proof of what the attempt did. So texts
are cut and made storable here, and file changes that do not fit the schema are dropped rather than the end with them.
"""

from dataclasses import dataclass
from typing import Final

import pydantic

from schemas.events import Artifact, Event, FileChange, ToolCallFinished, ToolCallLost, ToolCallStarted
from services.chassis.sanitize import sanitize_json, sanitize_text
from services.tool_executor.claiming.claim import Attempt
from services.tool_executor.tools import ToolEnd

EVIDENCE_CHARACTERS_MAX: Final = 2_000
"""Evidence is read by people in lists of unknown calls, where the whole output of a failure would bury the rest."""

PROBLEM_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class EndEvents:
    events: list[Event]
    changes_problem: str | None = None
    """Why the tool's file changes were dropped, for the service's log. None if they were not."""


def end_events(attempt: Attempt, started: ToolCallStarted, end: ToolEnd) -> EndEvents:
    """Return the events of this end. A pure call ran without a claim in the log, so its claim comes first.

    A call that was killed midway is lost, not cancelled: nobody saw whether its effect happened.
    """
    events: list[Event] = [started] if attempt.pure else []
    if end.outcome == "lost" or end.outcome == "cancelled":  # noqa: PLR1714  # narrows the type
        evidence = end.evidence or ("killed midway" if end.outcome == "cancelled" else "its end was not seen")
        evidence = sanitize_text(evidence)[:EVIDENCE_CHARACTERS_MAX]
        lost = ToolCallLost(call=attempt.call, attempt=attempt.attempt, claim=attempt.claim, evidence=evidence)
        return EndEvents([*events, lost])
    changes, problem = _file_changes(end)
    finished = ToolCallFinished(
        call=attempt.call,
        attempt=attempt.attempt,
        claim=attempt.claim,
        outcome=end.outcome,
        result=sanitize_json(end.result),
        changes=changes,
        artifacts=_artifacts(end),
        milliseconds=int(1000 * end.seconds),
    )
    return EndEvents([*events, finished], problem)


def _artifacts(end: ToolEnd) -> tuple[Artifact, ...]:
    return tuple(
        Artifact.model_validate({key: sanitize_json(value) for key, value in named.items()}) for named in end.artifacts
    )


def _file_changes(end: ToolEnd) -> tuple[tuple[FileChange, ...], str | None]:
    """Return the end's file changes, or none and the reason if one of them does not fit the schema."""
    try:
        return tuple(FileChange.model_validate(change) for change in end.changes), None
    except pydantic.ValidationError as error:
        return (), str(error)[:PROBLEM_CHARACTERS_MAX]
