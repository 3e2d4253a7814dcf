"""What a verification found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic import JsonValue

Check = Literal["log", "hash", "chain", "lineage", "context", "view"]
"""In this order they are made, and the first that is found is named first:

    log       the partition itself: records that are gone from its beginning, its middle or its end
    hash      a record's value is not the one that its producer hashed
    chain     the end of a turn names another hash chain than the thread's records come to
    lineage   a thread names another hash chain of its parent than the parent's records come to
    context   a step names another context of the model than the thread's records come to (of one thread alone)
    view      a row of a view is not what the log comes to
"""

VALUE_CHARACTERS_MAX = 2_000
"""Of a value that is shown."""


class Finding(NamedTuple):
    check: Check
    what: str
    """A sentence."""
    tenant: str | None = None
    thread: str | None = None
    view: str | None = None
    key: Mapping[str, JsonValue] | None = None
    """Of the view's row, or the position of the record."""
    column: str | None = None
    log_says: str | None = None
    view_says: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in self._asdict().items()}


class Progress(NamedTuple):
    phase: Literal["reading", "checking", "comparing", "done"]
    view: str | None
    """That is being compared."""
    records_done: int
    records_total: int
    seconds: float


@dataclass(slots=True)
class Report:
    generation: int
    """That was verified."""
    thread: str | None = None
    """Where it was this one alone, as tenant/thread."""
    positions: dict[int, int] = field(default_factory=dict)
    """By partition: where the log was folded up to, and the views were at."""
    records: int = 0
    """That were folded."""
    rows: dict[str, int] = field(default_factory=dict)
    """By view: how many rows the log comes to."""
    findings: int = 0
    by_check: dict[str, int] = field(default_factory=dict)
    by_view: dict[str, int] = field(default_factory=dict)
    firsts: list[Finding] = field(default_factory=list)
    """The first of each check, and of each view."""
    seconds: float = 0.0

    @property
    def first(self) -> Finding | None:
        return self.firsts[0] if self.firsts else None

    def add(self, finding: Finding, count: int = 1) -> None:
        of_view = "" if finding.view is None else finding.view
        if (of_view not in self.by_view and finding.check == "view") or finding.check not in self.by_check:
            self.firsts.append(finding)
        self.findings += count
        self.by_check[finding.check] = self.by_check.get(finding.check, 0) + count
        if finding.check == "view":
            self.by_view[of_view] = self.by_view.get(of_view, 0) + count

    def to_json(self) -> dict[str, JsonValue]:
        first = self.first
        return {
            "ok": first is None,
            "generation": self.generation,
            "thread": self.thread,
            "positions": {str(partition): offset for partition, offset in sorted(self.positions.items())},
            "records": self.records,
            "rows": dict(self.rows),
            "seconds": round(self.seconds, 3),
            "findings": self.findings,
            "by_check": dict(self.by_check),
            "by_view": dict(self.by_view),
            "first": None if first is None else first.to_json(),
            "firsts": [finding.to_json() for finding in self.firsts],
        }
