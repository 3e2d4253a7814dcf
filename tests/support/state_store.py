"""The projector's states in memory: the twin of services/chassis/postgres_states.py."""

from collections.abc import Sequence

from schemas.codec import Record, decode
from schemas.ids import ThreadKey
from schemas.state import NOTHING, ThreadState, is_active
from schemas.thread import fold
from services.chassis.log import Incoming
from services.chassis.states import PartitionKeys, PartitionStates, StatesUnavailableError


class MemoryStates:
    """Implements StateStore and KeyStore. `advance` is what the projector does; `is_away` is a database that is down."""

    def __init__(self) -> None:
        self.is_away = False
        self._states: dict[tuple[str, int, ThreadKey], ThreadState] = {}
        self._next_offsets: dict[tuple[str, int], int] = {}

    def advance(self, records: Sequence[Incoming]) -> None:
        for incoming in records:
            topic, partition = incoming.topic, incoming.partition
            record = decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)
            if isinstance(record, Record):
                place = (topic, partition, record.key)
                self._states[place] = fold(self._states.get(place, NOTHING), record).state
            self._next_offsets[topic, partition] = incoming.offset + 1

    def forget(self) -> None:
        """As when the views were dropped."""
        self._states.clear()
        self._next_offsets.clear()

    async def load_active(self, topic: str, partition: int) -> PartitionStates:
        active = {key: state for key, state in self._of(topic, partition).items() if is_active(state)}
        return PartitionStates(self._next_offsets.get((topic, partition), 0), active)

    async def load_threads(self, topic: str, partition: int, keys: Sequence[ThreadKey]) -> PartitionStates:
        states = self._of(topic, partition)
        stored = {key: states[key] for key in keys if key in states}
        return PartitionStates(self._next_offsets.get((topic, partition), 0), stored)

    async def load_keys(self, topic: str, partition: int, keys_max: int) -> PartitionKeys | None:
        keys = list(self._of(topic, partition))
        return PartitionKeys(self._next_offsets.get((topic, partition), 0), keys) if len(keys) <= keys_max else None

    def _of(self, topic: str, partition: int) -> dict[ThreadKey, ThreadState]:
        if self.is_away:
            raise StatesUnavailableError("the database is away")
        return {key: state for (t, p, key), state in self._states.items() if (t, p) == (topic, partition)}
