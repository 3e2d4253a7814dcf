"""The rows of `items`, as the runtime reads them, against the pure transcript: over compactions and rewinds of all kinds."""

import random

import pytest

from schemas.ids import ThreadKey
from schemas.transcript import Item, Transcript
from services.chassis.log import Incoming
from tests.support.contexts import apply_to, context_history, random_choices, transcript_of
from tests.support.histories import History
from tests.support.projector_world import key_of
from tests.support.view_harness import HOME, Views, advance
from tests.support.walks import as_read

THREADS = 12
MOVES = 14


def histories(rng: random.Random) -> dict[ThreadKey, History]:
    return {key: context_history(random_choices(rng, MOVES), key) for key in map(key_of, range(THREADS))}


def mixed(rng: random.Random, given: dict[ThreadKey, History]) -> tuple[list[Incoming], list[ThreadKey]]:
    """One partition's records, and whose each is."""
    queues = {key: as_read(history, HOME) for key, history in given.items()}
    keys = [key for key, queue in queues.items() for _ in queue]
    rng.shuffle(keys)
    return [queues[key].pop(0)._replace(offset=offset) for offset, key in enumerate(keys)], keys


def shown(transcript: Transcript) -> list[Item]:
    """The digest says what the content is; the order of its keys is the database's."""
    return [item._replace(content={}) for item in transcript.context()]


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
