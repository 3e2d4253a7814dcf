"""A verification reports its findings, and keeps the first of each kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pydantic import JsonValue

Check = Literal["log", "hash", "chain", "lineage", "context", "view"]
"""The checks, in the order in which they are made; what is found first is reported first:

    log       the partition itself: records that are gone from its beginning, its middle or its end
    hash      a record's value is not the one that its producer hashed
    chain     the end of a turn names another hash chain than the thread's records come to
    lineage   a thread names another hash chain of its parent than the parent's records come to
    context   a step names another context of the model than the thread's records come to (of one thread alone)
    view      a row of a view is not what the log comes to
"""

VALUE_CHARACTERS_MAX = 2_000
"""Characters of a value in a finding; the rest is cut off."""


class Finding(NamedTuple):
    """One thing that is wrong, and where. `log_says` and `view_says` are the two values that should be equal."""

    check: Check
    what: str
    """What is wrong, as a sentence."""
    tenant: str | None = None
    thread: str | None = None
    view: str | None = None
    key: Mapping[str, JsonValue] | None = None
    """The key of the view's row, or the position of the record."""
    column: str | None = None
    log_says: str | None = None
    view_says: str | None = None

    def to_json(self) -> dict[str, JsonValue]:
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in self._asdict().items()}


class Progress(NamedTuple):
    """How far a verification is."""

    phase: Literal["reading", "checking", "comparing", "done"]
    view: str | None
    """The view that is being compared; None in the other phases."""
    records_done: int
    records_total: int
    seconds: float


@dataclass(slots=True)
class Report:
    generation: int
    """Number of the generation that was verified."""
    thread: str | None = None
    """The one thread that was verified, as tenant/thread; None if all were."""
    positions: dict[int, int] = field(default_factory=dict)
    """The offset up to which the log was folded, by partition: it is the position of the views."""
    records: int = 0
    """Number of records that were folded."""
    rows: dict[str, int] = field(default_factory=dict)
    """The number of rows that the log gives, by view."""
    findings: int = 0
    by_check: dict[str, int] = field(default_factory=dict)
    by_view: dict[str, int] = field(default_factory=dict)
    firsts: list[Finding] = field(default_factory=list)
    """The first finding of each check, and of each view."""
    seconds: float = 0.0

    @property
    def first(self) -> Finding | None:
        return self.firsts[0] if self.firsts else None

    def add(self, finding: Finding, count: int = 1) -> None:
        """Count a finding that stands for `count` of its kind; keep it if it is the first."""
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
