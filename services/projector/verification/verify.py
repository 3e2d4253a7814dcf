"""Verification: do the views equal what the log gives, and is the log what its producers wrote?

The log is folded again, by the projector's own code, into a scratch generation beside the live one, up to the position
of the live one. That position is read in a snapshot, the fold stops exactly there, and the live rows are compared in
the same snapshot. So no service has to stop, and all of them may write meanwhile.

The snapshot is opened late: before it, the scratch generation reads in rounds until it is close. What is left to read
while the snapshot is open is then little, unless the log grows as fast as it is read.

The scratch generation is dropped at the end. If this process is killed, the next verification drops it.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from schemas.ids import ThreadKey
from schemas.topics import THREAD_EVENTS
from services.chassis.log.port import Incoming, Log, TopicPartition
from services.chassis.postgres.sql_files import SqlFiles
from services.projector.generations import schema_sql
from services.projector.generations.database import connect
from services.projector.generations.errors import ProjectorError
from services.projector.generations.generations import (
    TABLES,
    admit_log,
    check_generation,
    create_generation,
    drop_generation,
    live_generation,
    stored_positions,
    unfinished_generations,
)
from services.projector.generations.maintenance_lock import MaintenanceLock
from services.projector.generations.postgres_store import PostgresStore
from services.projector.generations.store import Generation
from services.projector.rebuilding.build import Build, Positions
from services.projector.rebuilding.compare import NO_TENANT, differences_between
from services.projector.rebuilding.garbage_collection import collecting_rarely
from services.projector.settings import ProjectorSettings
from services.projector.verification.chains import Contexts, Offsets, gone, wrong_ends, wrong_hashes, wrong_parents
from services.projector.verification.report import Finding, Progress, Report
from services.projector.verification.rows import KeyColumn, Restriction, Side, compare_rows

TOPIC: Final = THREAD_EVENTS.name
COMPARED: Final = ("events", *[name for name in TABLES if name not in {"events", "positions"}], "positions")
"""The views in the order of the comparison: `events` first, because a record explains the rows made from it."""

SECONDS_MAX: Final = 86_400.0
"""A verification that takes longer than a day ends with an error. It keeps a snapshot of the live views open while
it compares, and an open snapshot keeps Postgres from removing dead rows.
"""
ROUNDS_MAX: Final = 20
"""How often a verification reads on to where the live views are by then, before it opens the snapshot. Each round is
shorter than the one before unless the log grows as fast as it is read; then more rounds would not help.
"""

OnProgress = Callable[[Progress], None]


class VerifyError(ProjectorError):
    """The verification could not be carried out, so it says nothing about the views."""


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """What to verify."""

    thread: ThreadKey | None = None
    """The one thread to verify; None means all."""
    accepted: Collection[tuple[int, int]] = ()
    """Partition and offset of records whose wrong hash is known and accepted."""


async def verify(
    log: Log, dsn: str, settings: ProjectorSettings, on_progress: OnProgress, asked: VerifyRequest | None = None
) -> Report:
    """Raises VerifyError, BusyError, OtherLogError, OtherPartitionsError, OtherVersionError."""
    try:
        async with asyncio.timeout(SECONDS_MAX) as limit, MaintenanceLock(dsn, settings) as lock:
            return await _verify(log, dsn, settings, on_progress, asked or VerifyRequest(), lock)
    except TimeoutError as error:
        if not limit.expired():
            raise VerifyError(f"the log or the database did not answer in time ({error!r}); run it again") from error
        raise VerifyError(
            f"the verification did not end within {SECONDS_MAX:.0f} s; verify single threads instead"
        ) from None


async def _verify(
    log: Log,
    dsn: str,
    settings: ProjectorSettings,
    on_progress: OnProgress,
    asked: VerifyRequest,
    lock: MaintenanceLock,
) -> Report:
    live = await lock.do(live_generation)
    if live is None:
        raise VerifyError("there are no views; the projector makes them when it runs")
    cluster_id = await log.cluster_id()
    check_generation(live, cluster_id)
    partitions = await log.partition_count(TOPIC)
    await lock.do(lambda connection: admit_log(connection, cluster_id, partitions))
    await _drop_scratches(lock)
    try:  # a cancel may come while the scratch is being made, and find it made
        scratch = await lock.do(lambda connection: _create_scratch(connection, cluster_id))
        with collecting_rarely():
            return await _Verification(log, dsn, settings, on_progress, asked, lock, live, scratch).run()
    finally:
        await _drop_scratches(lock)


async def _create_scratch(connection: asyncpg.Connection, cluster_id: str) -> Generation:
    """Create the scratch generation in a transaction of its own."""
    async with connection.transaction():
        return await create_generation(connection, cluster_id, "scratch")


async def _drop_scratches(lock: MaintenanceLock) -> None:
    """Drop all scratch generations. The lock allows one verification at a time, so whoever made them has ended."""
    for left in await lock.do(lambda connection: unfinished_generations(connection, "scratch")):

        async def drop(connection: asyncpg.Connection, generation: Generation = left) -> None:
            await drop_generation(connection, generation)

        await lock.do(drop)


class _Verification:
    """One verification: it reads the log, checks it, and compares the two generations."""

    def __init__(
        self,
        log: Log,
        dsn: str,
        settings: ProjectorSettings,
        on_progress: OnProgress,
        asked: VerifyRequest,
        lock: MaintenanceLock,
        live: Generation,
        scratch: Generation,
    ) -> None:
        self._log = log
        self._dsn = dsn
        self._settings = settings
        self._on_progress = on_progress
        self._asked = asked
        self._lock = lock
        self._live = live
        self._scratch = scratch
        self._sql = SqlFiles(Path(__file__).with_name("sql"))
        self._partitions = 0
        self._only: frozenset[int] | None = None
        """The partitions to read; None means all."""
        self._begins: Positions = {}
        self._report = Report(live.number, None if asked.thread is None else str(asked.thread))
        self._contexts = None if asked.thread is None else Contexts(asked.thread)
        self._loop = asyncio.get_running_loop()
        self._started = self._moved_at = self._loop.time()
        self._done = 0

    async def run(self) -> Report:
        """Read, check and compare, and return what was found."""
        log, settings, thread = self._log, self._settings, self._asked.thread
        self._partitions = await log.partition_count(TOPIC)
        if thread is not None:
            self._only = frozenset([log.partition_for(thread.to_bytes(), self._partitions)])
        numbers = range(self._partitions) if self._only is None else sorted(self._only)
        self._begins = await log.begin_offsets([TopicPartition(TOPIC, number) for number in numbers])
        offsets = Offsets(self._begins)
        if self._contexts is not None:
            await self._contexts.open(log)
        store = PostgresStore(self._dsn, settings, self._scratch)
        build = Build(log, store, settings, owner="verify", partitions=self._only, only=self._seeing(offsets))
        try:
            await build.open()
            await self._read_until_close(build)
            # From here on the snapshot is open: read the rest, then compare, and close it.
            view_connection = await connect(self._dsn, settings)
            try:
                async with view_connection.transaction(isolation="repeatable_read", readonly=True):
                    targets = await self._targets(view_connection, build)
                    await build.read_to(targets, lambda _: self._say_read(build, targets))
                    offsets.end(targets)
                    self._report.positions = {tp.partition: end for tp, end in sorted(targets.items())}
                    self._report.records = offsets.records
                    self._find_in_log(offsets)
                    await self._compare(view_connection)
            finally:
                view_connection.terminate()
        finally:
            await build.close()
        self._report.seconds = self._loop.time() - self._started
        self._on_progress(Progress("done", None, offsets.records, offsets.records, self._report.seconds))
        return self._report

    # Reading

    def _seeing(self, offsets: Offsets) -> Callable[[Incoming], bool]:
        """Return the filter of the build. It sees every record on its way, wanted or not, so that gaps are found."""
        contexts, key = self._contexts, self._asked.thread
        raw_key = None if key is None else key.to_bytes()

        def is_wanted(record: Incoming) -> bool:
            offsets.see(record)
            if contexts is None:
                return True
            if record.key != raw_key:
                return False
            contexts.see(record)
            return True

        return is_wanted

    async def _read_until_close(self, build: Build) -> None:
        """Read until at most one batch is left, so that the snapshot in which the rest is read is short."""
        for _ in range(ROUNDS_MAX):
            stored = await self._lock.do(lambda connection: stored_positions(connection, self._live))
            targets = await self._within_log(stored)
            at = build.positions()
            if sum(max(0, end - at[tp]) for tp, end in targets.items()) <= self._settings.projector_batch_records_max:
                return
            ahead = {tp: max(end, at[tp]) for tp, end in targets.items()}
            await build.read_to(ahead, lambda _, ahead=ahead: self._say_read(build, ahead))  # type: ignore[misc]

    async def _targets(self, view_connection: asyncpg.Connection, build: Build) -> dict[TopicPartition, int]:
        stored = await stored_positions(view_connection, self._live)
        targets = await self._within_log(stored)
        # The scratch generation cannot unread. If the views are behind it now, a crash took their last batches.
        back = [tp for tp, at in build.positions().items() if at > max(targets[tp], self._begins[tp])]
        if back:
            raise VerifyError(
                f"the views went back in partitions {sorted(tp.partition for tp in back)} meanwhile, as after a crash "
                "of the database; run it again"
            )
        for tp, at in sorted(stored.items()):
            if tp in targets and at > targets[tp]:
                self._report.add(self._beyond(tp, targets[tp], at))
        return targets

    async def _within_log(self, stored: Positions) -> dict[TopicPartition, int]:
        """Return how far to read each partition: to the position of the views, or to the end of the log before that."""
        ends = await self._log.end_offsets(self._begins)
        return {tp: max(self._begins[tp], min(stored.get(tp, 0), end)) for tp, end in ends.items()}

    def _beyond(self, tp: TopicPartition, end: int, at: int) -> Finding:
        """Return the finding that the log ends before the position of the views."""
        what = (
            f"partition {tp.partition} of {TOPIC} ends at offset {end}, the views hold records up to offset {at - 1}: "
            "records are gone from its end, or it is another log"
        )
        return Finding("log", what, key={"partition": tp.partition, "offset": end})

    def _say_read(self, build: Build, targets: Positions) -> None:
        """Report the progress. Raises VerifyError if the log has brought nothing for too long."""
        at = build.positions()
        done = sum(at[tp] - self._begins[tp] for tp in targets)
        if done != self._done:
            self._done, self._moved_at = done, self._loop.time()
        elif self._loop.time() > self._moved_at + self._settings.limits.verify_idle_seconds:
            raise VerifyError(
                f"the log gave nothing for {self._settings.limits.verify_idle_seconds:g} s, though it does not end "
                f"there: {', '.join([f'{tp.partition}:{at[tp]}' for tp in sorted(targets) if at[tp] < targets[tp]])}"
            )
        total = sum(max(end, at[tp]) - self._begins[tp] for tp, end in targets.items())
        self._on_progress(Progress("reading", None, done, total, self._loop.time() - self._started))

    def _say(self, phase: str, view: str | None) -> None:
        records, seconds = self._report.records, self._loop.time() - self._started
        self._on_progress(
            Progress("comparing" if phase == "comparing" else "checking", view, records, records, seconds)
        )

    # Finding

    def _find_in_log(self, offsets: Offsets) -> None:
        """Report records that are gone, from the beginning of a partition or from its middle."""
        for tp, begin in sorted(self._begins.items()):
            if begin > 0:
                self._report.add(gone(tp, 0, begin))
        for gap in offsets.gaps:
            self._report.add(gap, offsets.gap_count)

    async def _compare(self, view_connection: asyncpg.Connection) -> None:
        """Check the chains in the scratch generation, and compare it with the live one in its snapshot."""
        connection = await connect(self._dsn, self._settings)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await connection.execute(schema_sql.set_schema(self._scratch.schema))
                self._say("checking", None)
                await self._check_chains(connection)
                seconds = SECONDS_MAX
                log_side = Side(connection, self._scratch.schema, seconds)
                view_side = Side(view_connection, self._live.schema, seconds)
                if self._asked.thread is None:
                    await self._compare_all(log_side, view_side)
                else:
                    await self._compare_thread(self._asked.thread, log_side, view_side)
        finally:
            connection.terminate()

    async def _check_chains(self, connection: asyncpg.Connection) -> None:
        """Check the log against what its producers wrote into it: hashes, chains of turns, chains of parents,
        contexts.
        """
        seconds, report, sql = SECONDS_MAX, self._report, self._sql
        async for finding in wrong_hashes(connection, sql["verify_hashes"], seconds, self._asked.accepted):
            report.add(finding)
        async for finding in wrong_ends(connection, sql["verify_confirmed"], seconds):
            report.add(finding)
        query = sql["verify_lineage"]
        async for finding in wrong_parents(connection, query, seconds, self._log, TOPIC, self._partitions):
            report.add(finding)
        for finding in self._contexts.findings if self._contexts is not None else ():
            report.add(finding)

    async def _compare_all(self, log_side: Side, view_side: Side) -> None:
        """Compare by checksums first, and row by row only the rows of a tenant and view that differ."""
        self._say("comparing", None)
        found = await differences_between(
            view_side.connection, view_side.schema, log_side.connection, log_side.schema, self._settings
        )
        tenants: dict[str, list[str]] = {}
        for difference in found:
            tenants.setdefault(difference.view, []).append(difference.tenant)
        for view in COMPARED:
            self._report.rows[view] = await self._count(log_side, view)
            for tenant in tenants.get(view, ()):
                only = Restriction() if tenant == NO_TENANT else Restriction("r.tenant = $1", (tenant,))
                if tenant == NO_TENANT and view != "positions":
                    only = Restriction("r.tenant is null")
                await self._compare_view(view, log_side, view_side, only)

    async def _compare_thread(self, thread: ThreadKey, log_side: Side, view_side: Side) -> None:
        """Compare the rows of one thread. Positions are left out, because they are those of a whole partition."""
        for view in COMPARED:
            if view == "positions":
                continue
            only = Restriction("r.tenant = $1 and r.thread = $2", tuple(thread))
            if view == "dead_letters":  # only the thread's own partition was read, and they may lie in others
                home = self._log.partition_for(thread.to_bytes(), self._partitions)
                only = Restriction(f'{only.condition} and r."partition" = $3', (*thread, home))
            self._report.rows[view] = await self._count(log_side, view)
            await self._compare_view(view, log_side, view_side, only)
        if not self._report.rows["events"] and not self._report.findings:
            raise VerifyError(f"neither the log nor the views have a thread {thread} (tenant/thread)")

    async def _compare_view(self, view: str, log_side: Side, view_side: Side, only: Restriction) -> None:
        """Compare rows of a view by its primary key, and report the first difference with the number of all."""
        self._say("comparing", view)
        rows = await log_side.connection.fetch(self._sql["verify_keys"], f"{log_side.schema}.{view}")
        keys = [KeyColumn(row["name"], row["is_collated"]) for row in rows]
        count, first = await compare_rows(view, keys, log_side, view_side, only)
        if first is not None:
            self._report.add(first, count)

    async def _count(self, log_side: Side, view: str) -> int:
        counted: int = await log_side.connection.fetchval(
            schema_sql.count_rows(log_side.schema, view),
            timeout=log_side.timeout_seconds,
        )
        return counted


def accepted_of(texts: Collection[str]) -> Mapping[tuple[int, int], None]:
    """Return the records named as `partition:offset`, without repetitions. Raises VerifyError."""
    accepted: dict[tuple[int, int], None] = {}
    for text in texts:
        partition, colon, offset = text.partition(":")
        if not (colon and partition.isdecimal() and offset.isdecimal()):
            raise VerifyError(f"a record to accept is named partition:offset, not {text!r}")
        accepted[int(partition), int(offset)] = None
    return accepted
