"""Which threads services report on `thread-progress` as set aside.

A service repeats its report while that lasts, so a report that is not repeated is out of date. The live reader sees all
progress and passes reports on. Reports from before this process began are read from the recent end of each partition,
once somebody asks.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from schemas.errors import ThreadlogError
from schemas.ids import ThreadKey, parse_key
from schemas.other_topics.progress import Quarantine, decode_progress, progress_kind
from schemas.topics import THREAD_PROGRESS
from services.chassis.log.port import Incoming, Log, Reader, TopicPartition

POLL_MS = 200
"""How long the broker may hold a poll that finds nothing."""
RECENT_RECORDS_MAX: Final = 2_000
"""Newest records of each partition of thread-progress that are read. Reports repeat, so the recent end holds them all.
"""
HEARD_MAX = 10_000
"""Reports that are remembered: the last one of each thread and service. More of them mean that something larger is
broken.
"""


class QuarantineReport(NamedTuple):
    """One service's report about one thread."""

    key: ThreadKey
    by: str
    """The service and its instance."""
    reason: str
    since_ms: int
    """When the service set the thread aside."""
    reported_ms: int
    """When it last said so."""


class QuarantineReports:
    """Collects the reports that are valid now."""

    def __init__(self, log_: Log, partitions: int, valid_ms: int, records_max: int = RECENT_RECORDS_MAX) -> None:
        """A report is valid for `valid_ms`. `records_max` is how many of the newest records of each partition are
        read.
        """
        self._log = log_
        self._tps = [TopicPartition(THREAD_PROGRESS.name, number) for number in range(partitions)]
        self._records_max = records_max
        self._valid_ms = valid_ms
        self._reader: Reader | None = None
        self._heard: dict[tuple[ThreadKey, str], QuarantineReport] = {}

    def hear(self, record: Incoming) -> None:
        """Remember a report that the live reader has seen."""
        for report in _reports([record]):
            if len(self._heard) < HEARD_MAX or (report.key, report.by) in self._heard:
                self._heard[report.key, report.by] = report

    async def recent(self, now_ms: int) -> list[QuarantineReport]:
        """Return the valid reports, the last one of each thread and service. Only one caller at a time. Raises
        LogError.
        """
        ends = await self._log.end_offsets(self._tps)
        begins = await self._log.begin_offsets(self._tps)
        starts = {tp: max(begins[tp], ends[tp] - self._records_max) for tp in self._tps}
        starts = {tp: start for tp, start in starts.items() if start < ends[tp]}
        if self._reader is None:
            self._reader = await self._log.reader()
        reader = self._reader
        reader.assign(starts)
        found: dict[tuple[ThreadKey, str], QuarantineReport] = {}
        self._heard = {
            name: report for name, report in self._heard.items() if now_ms - report.reported_ms < self._valid_ms
        }
        try:
            while any(reader.position(tp) < ends[tp] for tp in starts):
                for _, records in await reader.poll(POLL_MS):
                    for report in _reports(records):
                        found[report.key, report.by] = report
        finally:
            reader.assign({})
        found |= self._heard
        return [report for report in found.values() if now_ms - report.reported_ms < self._valid_ms]

    async def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            await self._reader.close()


def _reports(records: Sequence[Incoming]) -> list[QuarantineReport]:
    """Return the reports among the records; what cannot be decoded is none."""
    reports = []
    for record in records:
        if progress_kind(record.headers) != "quarantine":
            continue
        said, key = decode_progress(record.value), _key(record)
        if isinstance(said, Quarantine) and key is not None:
            since_ms = record.timestamp_ms if said.since_ms is None else said.since_ms
            reports.append(QuarantineReport(key, said.by or "a service", said.reason, since_ms, record.timestamp_ms))
    return reports


def _key(record: Incoming) -> ThreadKey | None:
    try:
        return parse_key(record.key)
    except ThreadlogError:
        return None
