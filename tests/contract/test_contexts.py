"""The rows of `items`, as services read them, against the pure transcript: over compactions and rewinds of all kinds, in
threads, in their forks and in forks of those.
"""

import random
from collections.abc import Sequence

import pytest

from schemas.ids import TenantId, ThreadId, ThreadKey
from schemas.transcript import Item, Transcript
from services.chassis.clock import SystemClock
from services.chassis.log.port import Incoming, Outgoing
from services.chassis.threads.contexts import Bounds, ShownAt, inherited_from, read_inherited, reading, scan_shown_at
from tests.support.recorded.contexts import (
    apply_to,
    context_as_of,
    context_history,
    family,
    random_choices,
    settled_seqs,
    transcript_of,
)
from tests.support.recorded.histories import History
from tests.support.recorded.walks import as_read
from tests.support.simulated.log import SimulatedBroker
from tests.support.stored.view_harness import HOME, TOPIC, Views, advance
from tests.support.worlds.projector import key_of

THREADS = 12
MOVES = 14
FAMILY = [ThreadKey(TenantId("acme"), ThreadId(f"t-{number}")) for number in range(5)]


def histories(rng: random.Random) -> dict[ThreadKey, History]:
    return {key: context_history(random_choices(rng, MOVES), key) for key in map(key_of, range(THREADS))}


def mixed(rng: random.Random, given: dict[ThreadKey, History]) -> tuple[list[Incoming], list[ThreadKey]]:
    """One partition's records, and whose each is."""
    queues = {key: as_read(history, HOME) for key, history in given.items()}
    keys = [key for key, queue in queues.items() for _ in queue]
    rng.shuffle(keys)
    return [queues[key].pop(0)._replace(offset=offset) for offset, key in enumerate(keys)], keys


def shown(transcript: Transcript) -> list[Item]:
    return by_digest(transcript.context())


def by_digest(items: Sequence[Item]) -> list[Item]:
    """The digest says what the content is; the order of its keys is the database's."""
    return [item._replace(content={"call": item.content.get("call")}) for item in items]


@pytest.mark.parametrize("seed", range(2))
async def test_what_is_loaded_is_what_the_model_sees(views: Views, seed: int) -> None:
    rng = random.Random(seed)
    given = histories(rng)
    records, keys = mixed(rng, given)
    start, compared, summed, goes_on = 0, 0, 0, 0
    while start < len(records):
        end = start + rng.choice([1, 7, 60, 200])
        await advance(views, records[start:end])
        for key in sorted(set(keys[start:end])):
            seq = keys[:end].count(key)
            cold = await views.transcripts.load(key)
            assert cold is not None and cold.seq == seq
            assert shown(cold.transcript) == shown(transcript_of(given[key], seq)), (key, seq)
            compared, summed = compared + 1, summed + (cold.transcript.loaded_with > 0)
            apply_to(cold.transcript, given[key], seq)
            if not cold.transcript.lacks_items:
                assert shown(cold.transcript) == shown(transcript_of(given[key])), (key, seq)
                goes_on += 1
        start = end
    assert 0 < summed < compared
    assert 0 < goes_on < compared


def forked_families(seed: int) -> tuple[list[History], list[Incoming]]:
    """Threads of which each but the first is a fork of one before it, and their records as one partition has them."""
    histories = family(random.Random(seed), FAMILY, 7)
    records = [record for history in histories for record in as_read(history, HOME)]
    return histories, [record._replace(offset=offset) for offset, record in enumerate(records)]


@pytest.mark.parametrize("seed", range(3))
async def test_a_thread_and_its_forks_show_what_they_did_at_each_seq_whatever_came_later(
    views: Views, seed: int
) -> None:
    histories, records = forked_families(seed)
    await advance(views, records)

    async def read(key: ThreadKey, seq: int) -> ShownAt:
        found = await views.transcripts.shown_at(key, seq)
        assert found is not None
        return found

    inherited = 0
    for history in histories:
        for seq in settled_seqs(history):
            own = await read(history.key, seq)
            context = [*await inherited_from(history.key.tenant, own.parent, read), *own.items]
            assert by_digest(context) == by_digest(context_as_of(histories, history, seq)), (history.key, seq)
            inherited += own.parent is not None
        cold = await views.transcripts.load(history.key)
        assert cold is not None
        if cold.transcript.lacks_inherited:
            assert cold.transcript.forked is not None
            cold.transcript.inherited = await read_inherited(history.key.tenant, cold.transcript.forked, read)
        assert shown(cold.transcript) == by_digest(context_as_of(histories, history, history.state.seq))
        assert await views.transcripts.shown_at(history.key, history.state.seq + 1) is None
    assert inherited > 0


async def test_no_more_is_read_of_a_context_than_is_asked_for(views: Views) -> None:
    histories, records = forked_families(0)
    await advance(views, records)
    root = histories[0]
    whole = await views.transcripts.shown_at(root.key, root.state.seq)
    assert whole is not None and len(whole.items) > 1
    assert not whole.is_cut
    for bounds in (Bounds(1), Bounds(None, 1), Bounds(1, 1), Bounds(5, 1)):
        some = await views.transcripts.shown_at(root.key, root.state.seq, bounds)
        assert some is not None and some.is_cut
        assert by_digest(some.items) == by_digest(whole.items[:1])
    enough = await views.transcripts.shown_at(root.key, root.state.seq, Bounds(len(whole.items), 1_000_000))
    assert enough == whole


@pytest.mark.parametrize("seed", range(2))
async def test_where_the_rows_are_gone_the_log_tells_the_same(views: Views, seed: int) -> None:
    histories, records = forked_families(seed)
    broker = SimulatedBroker({TOPIC: 1}, SystemClock())
    log = broker.connect("r1")
    outgoing = [Outgoing(r.key or b"", r.value, r.headers, r.timestamp_ms) for r in records]
    await log.appender.append(TOPIC, 0, outgoing)
    read = reading(views.transcripts, log)
    for history in histories:
        for seq in settled_seqs(history)[::3]:
            own = await read(history.key, seq)
            assert own == await scan_shown_at(log, history.key, seq)
            context = [*await inherited_from(history.key.tenant, own.parent, read), *own.items]
            assert by_digest(context) == by_digest(context_as_of(histories, history, seq))
    await log.close()
