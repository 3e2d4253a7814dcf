"""What the projector would have stored: a simulated log folded up to a position of the test's choosing."""

from collections import defaultdict
from collections.abc import Sequence

from schemas.codec import Record, decode
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState, is_active
from schemas.thread import fold
from schemas.topics import THREAD_EVENTS
from services.chassis.states import PartitionStates, StatesUnavailableError
from services.ingest.frames import FoldedRecord, folded_record
from services.ingest.history import EventPage
from tests.support.simulated_log import SimulatedBroker

TOPIC = THREAD_EVENTS.name


class FoldedViews:
    """Implements StateStore and ingest's History. `advance` moves it; `is_away` is a database that is down."""

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self.is_away = False
        self.next_offsets: dict[int, int] = defaultdict(int)
        self.states: dict[ThreadKey, ThreadState] = {}
        self.events: dict[ThreadKey, list[FoldedRecord]] = defaultdict(list)
        self.loads = 0
        self.fallen_back_to: int | None = None
        """A position that is told instead of the real one, with no rows."""

    def advance(self, partition: int, count: int | None = None) -> None:
        """By so many records, or to the end."""
        start = self.next_offsets[partition]
        for raw in self._broker.records(TOPIC, partition)[start:][:count]:
            self.next_offsets[partition] = raw.offset + 1
            record = decode(raw.key, raw.headers, raw.value, raw.offset, raw.timestamp_ms)
            if isinstance(record, Record):
                self.states[record.key], verdict = fold(self.states.get(record.key, NOTHING), record)
                seq = self.states[record.key].seq
                self.events[record.key].append(folded_record(record, raw.value, seq, verdict, partition))

    async def load_active(self, topic: str, partition: int) -> PartitionStates:
        self._check()
        active = {key: state for key, state in self.states.items() if is_active(state)}
        return PartitionStates(self.next_offsets[partition], active)

    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        self._check()
        self.loads += 1
        if self.fallen_back_to is not None:
            return PartitionStates(self.fallen_back_to, {})
        stored = {key: self.states[key] for key in keys if key in self.states}
        return PartitionStates(self.next_offsets[partition], stored)

    async def page(self, key: ThreadKey, after: int, through: int, limit: int) -> list[FoldedRecord]:
        self._check()
        return [record for record in self.events[key] if after < record.seq <= through][:limit]

    async def page_of(self, key: ThreadKey, after: int, limit: int, *, applied_only: bool) -> EventPage:
        self._check()
        later = [r for r in self.events[key] if r.seq > after and (r.effect == "applied" or not applied_only)]
        page = later[:limit]
        return EventPage(page, page[-1].seq if page else after, len(later) <= limit)

    async def at(self, key: ThreadKey, partition: int, offset: int) -> FoldedRecord | None:
        self._check()
        found = [r for r in self.events[key] if (r.partition, r.offset) == (partition, offset)]
        return found[0] if found else None

    def _check(self) -> None:
        if self.is_away:
            raise StatesUnavailableError("the test turned it off")
