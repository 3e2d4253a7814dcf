from schemas.events import Artifact, ArtifactRecorded, ToolCallFinished
from services.projector.projections.changes import Applied

COLUMNS = (*("tenant", "thread", "seq", "part", "kind", "call", "sha256", "size", "media_type", "name", "at"),)


def artifact_rows(applied: Applied) -> list[tuple[object, ...]]:
    """A row for each time that a record which took effect names an artifact."""
    if applied.verdict.effect != "applied":
        return []
    match applied.record.data:
        case ArtifactRecorded() as data:
            return [_row(applied, 0, "recorded", None, data)]
        case ToolCallFinished() as data:
            return [_row(applied, part, "tool_call", data.call, one) for part, one in enumerate(data.artifacts)]
        case _:
            return []


def _row(
    applied: Applied, part: int, kind: str, call: str | None, named: Artifact | ArtifactRecorded
) -> tuple[object, ...]:
    record = applied.record
    what = (named.sha256, named.size, named.media_type, named.name)
    return (*record.key, applied.after.seq, part, kind, call, *what, record.time_ms)
