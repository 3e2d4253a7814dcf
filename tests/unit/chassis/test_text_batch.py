import asyncio

from services.chassis.text_batch import TextBatch
from tests.support.simulated.virtual_tests import in_virtual_time


@in_virtual_time
async def test_pieces_of_an_interval_go_out_as_one() -> None:
    emitted: list[str] = []
    batch = TextBatch(emitted.append, interval_ms=20)
    batch.add("a")
    await asyncio.sleep(0.01)
    batch.add("b")
    assert emitted == []
    await asyncio.sleep(0.011)
    assert emitted == ["ab"]
    batch.add("c")
    await asyncio.sleep(0.021)
    assert emitted == ["ab", "c"]


@in_virtual_time
async def test_a_flush_sends_what_is_there_once() -> None:
    emitted: list[str] = []
    batch = TextBatch(emitted.append, interval_ms=20)
    batch.flush()
    batch.add("a")
    batch.flush()
    batch.flush()
    await asyncio.sleep(1)
    assert emitted == ["a"]


@in_virtual_time
async def test_without_an_interval_what_comes_at_once_is_still_one_piece() -> None:
    emitted: list[str] = []
    batch = TextBatch(emitted.append, interval_ms=0)
    batch.add("a")
    batch.add("b")
    await asyncio.sleep(0.001)
    assert emitted == ["ab"]
