"""How long after a kill the victim's threads make their next step.

A kill of runtime or executor: threads in partitions where that instance wrote last, if the next step was its own; until
a service appends to them. Of ingest: streams that were open there; until they are open again. Of the projector, or of
Postgres: partitions that it held; until the views pass what they had, counted from when there was something to pass.
Of Kafka: threads with an open turn that waited for nobody; until a service appends to them.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import asyncpg

from schemas.codec import Record
from schemas.ids import ThreadKey
from schemas.state import Call
from services.chassis.postgres.connections import AWAY
from tests.chaos.followers import Follower, connected
from tests.chaos.observer import Observer, Seen

ACTING = frozenset({"runtime", "tool-executor"})
RECONNECT_SECONDS = 0.2
CONNECT_SECONDS = 3.0
QUERY_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class Waiting:
    kind: str
    since: float
    by: frozenset[str] = ACTING
    """Services whose next record in a thread is its progress."""


class Held(NamedTuple):
    next_offset: int
    owner: str


class Progress:
    def __init__(self, observer: Observer, dsn: str, poll_seconds: float) -> None:
        self._observer = observer
        self._dsn = dsn
        self.poll_seconds = poll_seconds
        """From one look at the views' positions to the next."""
        self._threads: dict[ThreadKey, list[Waiting]] = defaultdict(list)
        self._streams: dict[Follower, list[Waiting]] = defaultdict(list)
        self._partitions: dict[int, list[tuple[Waiting, int]]] = defaultdict(list)
        self._positions: dict[int, Held] = {}
        self.samples: dict[str, list[float]] = defaultdict(list)
        """Seconds, by kind of victim."""
        observer.listeners.append(self._on_record)

    def killed(self, name: str, followers: Sequence[Follower], kind: str | None = None) -> int:
        """About to be. `kind` is under what its samples go; returns how many there will be."""
        now = asyncio.get_running_loop().time()
        service, _, instance = name.rpartition("-")
        waiting = Waiting(kind or service or name, now)
        match service or name:
            case "runtime":
                return self._wait_for_threads(
                    waiting, lambda seen: is_runtimes(seen, instance, self._is_held(seen, name))
                )
            case "tool-executor":
                return self._wait_for_threads(
                    waiting,
                    lambda seen: any(is_executors(call, instance, self._is_held(seen, name)) for call in _calls(seen)),
                )
            case "ingest":
                streams = connected(followers, name)
                for follower in streams:
                    self._streams[follower].append(waiting)
                return len(streams)
            case "projector":
                held = [at for at, (_, owner) in self._positions.items() if owner.startswith(f"{name}/")]
                return self._wait_for_positions(waiting, held)
            case "postgres":
                return self._wait_for_positions(waiting, list(self._positions))
            case _:
                return self._wait_for_threads(waiting, lambda seen: is_runtimes(seen) or bool(_calls(seen)))

    def wait_for(self, threads: Sequence[Seen], kind: str, service: str) -> int:
        """From now to the next record of that service in each of these."""
        waiting = Waiting(kind, asyncio.get_running_loop().time(), frozenset({service}))
        for seen in threads:
            self._threads[seen.key].append(waiting)
        return len(threads)

    def pending(self) -> int:
        """Of those that have something to make progress with."""
        partitions = [waiting for each in self._partitions.values() for waiting, _ in each if waiting.since]
        return len(partitions) + sum(len(each) for by in (self._threads, self._streams) for each in by.values())

    def forget_pending(self) -> None:
        for by in (self._threads, self._streams, self._partitions):
            by.clear()

    def on_open(self, follower: Follower) -> None:
        for waiting in self._streams.pop(follower, []):
            self._sample(waiting)

    async def watch_positions(self) -> None:
        """Until cancelled; also while the database is away."""
        while True:
            with contextlib.suppress(*AWAY):
                connection = await asyncpg.connect(self._dsn, timeout=CONNECT_SECONDS)
                try:
                    while True:
                        await self._look_at_positions(connection)
                        await asyncio.sleep(self.poll_seconds)
                finally:
                    connection.terminate()
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _look_at_positions(self, connection: asyncpg.Connection) -> None:
        rows = await connection.fetch(
            'select "partition", next_offset, owner from views.positions', timeout=QUERY_SECONDS
        )
        for partition, next_offset, owner in rows:
            self._positions[partition] = Held(next_offset, owner)
            still = []
            for waiting, beyond in self._partitions.pop(partition, []):
                if next_offset > beyond:
                    self._sample(waiting)
                else:
                    still.append((waiting, beyond))
            if still:
                self._partitions[partition] = still

    def _wait_for_positions(self, waiting: Waiting, partitions: Sequence[int]) -> int:
        for partition in partitions:
            stored = self._positions[partition].next_offset
            is_behind = self._observer.next_offsets[partition] > stored
            own = Waiting(waiting.kind, waiting.since if is_behind else 0.0)
            self._partitions[partition].append((own, stored))
        return len(partitions)

    def _wait_for_threads(self, waiting: Waiting, is_affected: Callable[[Seen], bool]) -> int:
        affected = [seen.key for seen in self._observer.threads.values() if is_affected(seen)]
        for key in affected:
            self._threads[key].append(waiting)
        return len(affected)

    def _is_held(self, seen: Seen, name: str) -> bool:
        return self._observer.owners.get((name.rpartition("-")[0], seen.partition)) == name

    def _on_record(self, seen: Seen, record: Record) -> None:
        now = asyncio.get_running_loop().time()
        for waiting, beyond in self._partitions.get(seen.partition, ()):
            if not waiting.since and record.offset >= beyond:
                waiting.since = now
        service = record.source.partition("/")[0]
        still = []
        for waiting in self._threads.pop(seen.key, []):
            if service in waiting.by:
                self._sample(waiting)
            else:
                still.append(waiting)
        if still:
            self._threads[seen.key] = still

    def _sample(self, waiting: Waiting) -> None:
        if waiting.since:
            self.samples[waiting.kind].append(asyncio.get_running_loop().time() - waiting.since)


def is_runtimes(seen: Seen, instance: str | None = None, is_held: bool = True) -> bool:
    """Whether the next step of its open turn is the runtime's, and there: a model call is under way, or nothing is."""
    turn = seen.state.turn
    if turn is None or seen.waits_for_others:
        return False
    if turn.step is not None and turn.step.status == "open":
        return instance is None or turn.step.owner.startswith(f"{instance}/")
    return is_held and not _calls(seen)


def is_executors(call: Call, instance: str, is_held: bool) -> bool:
    """Whether it runs there, or waits there to be run."""
    if call.status == "running":
        return (call.executor or "").startswith(f"{instance}/")
    return call.status == "dispatched" and is_held


def _calls(seen: Seen) -> list[Call]:
    return [call for call in seen.state.calls.values() if call.status in {"dispatched", "running", "repeatable"}]
