"""Cold transcripts: from rows, from the partition, and ahead of the reader."""

import asyncio
from typing import Any

from schemas.events import ThreadRewound
from schemas.ids import ThreadKey
from services.runtime.models.port import (
    ModelRequest,
)
from tests.support.recorded.histories import RUNTIME, compacted
from tests.support.simulated.virtual_tests import in_virtual_time
from tests.support.worlds.runtime import (
    PlayedModel,
    runtime,
    world_of,
)
from tests.support.worlds.services import RuntimeProcess, World


async def with_cold_transcript(world: World, model: PlayedModel) -> tuple[ThreadKey, RuntimeProcess]:
    """One turn has been; another runtime has the thread now, whose transcript it does not know."""
    first = await runtime(world)
    key = await world.create("t")
    await world.submit(key, "i1", text="first")
    await world.until_rest(key)
    await asyncio.sleep(2)
    first.crash()
    return key, await runtime(world, "r2")


def said(request: ModelRequest) -> list[str]:
    return [str(item["content"][0]["text"]) for item in request.items if item["kind"] == "message"]  # type: ignore[index,call-overload]


@in_virtual_time
async def test_a_cold_transcript_comes_from_its_rows() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, _ = await with_cold_transcript(world, model)
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert said(model.requests[-1]) == ["first", "done", "second"]
        assert world.store.transcripts_loaded == 1


@in_virtual_time
async def test_without_rows_it_is_scanned() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)

        async def none(_: ThreadKey) -> None:
            return None

        process.runtime._transcripts.store = type("Away", (), {"load": staticmethod(none)})()  # type: ignore[assignment]
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert said(model.requests[-1]) == ["first", "done", "second"]


@in_virtual_time
async def test_rows_that_are_behind_the_state_are_not_used() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)
        load = world.store.load

        async def old(wanted: ThreadKey) -> Any:
            cold = await load(wanted)
            return None if cold is None else cold._replace(seq=1)

        process.runtime._transcripts.store = type("Behind", (), {"load": staticmethod(old)})()  # type: ignore[assignment]
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert said(model.requests[-1]) == ["first", "done", "second"]


@in_virtual_time
async def test_rows_that_are_ahead_of_the_reader_show_nothing_twice() -> None:
    """The projector has read records that are still on their way to this runtime."""
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)
        load, is_stale = world.store.load, asyncio.Event()

        async def ahead(wanted: ThreadKey) -> Any:
            is_stale.set()
            for number in range(3):
                await world.submit(key, f"s{number}", mode="steer", text=f"steer {number}")
            world.store.advance()
            cold = await load(wanted)
            assert cold is not None and cold.seq > process.held(key).state.seq
            return cold

        process.runtime._transcripts.store = type("Ahead", (), {"load": staticmethod(ahead)})()  # type: ignore[assignment]
        fetch = process.reader.poll

        async def slow(timeout_ms: int) -> Any:
            polled = await fetch(timeout_ms)
            if is_stale.is_set():
                await asyncio.sleep(1)
            return polled

        process.reader.poll = slow  # type: ignore[method-assign]  # this reader lags behind
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        assert said(model.requests[1])[:3] == ["first", "done", "second"]
        assert said(model.requests[-1]).count("steer 2") == 1
        held = process.held(key)
        items = [(item.seq, item.part) for item in held.work.transcript.items]
        assert len(items) == len(set(items))


@in_virtual_time
async def test_what_a_summary_stood_for_is_loaded_once_a_rewind_brings_it_back() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, _ = await with_cold_transcript(world, model)
        await world.submit(key, "i2", text="second")
        await world.until_rest(key, turns=2)
        await world.command(key, compacted(world.of(key).state), "sum up", RUNTIME)
        await asyncio.sleep(2)
        for process in world.processes:
            process.crash()
        await runtime(world, "r3")
        await world.submit(key, "i3", text="third")
        await world.until_rest(key, turns=3)
        assert said(model.requests[-1]) == ["third"]
        await world.command(key, ThreadRewound(to_turn=1), "back")
        await world.submit(key, "i4", text="fourth")
        await world.until_rest(key, turns=4)
        assert said(model.requests[-1]) == ["first", "done", "fourth"]


@in_virtual_time
async def test_a_transcript_that_cannot_be_read_sets_its_thread_aside() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)

        async def broken(_: ThreadKey) -> None:
            raise ValueError("no JSON")

        process.runtime._transcripts.store = type("Broken", (), {"load": staticmethod(broken)})()  # type: ignore[assignment]
        await world.submit(key, "i2")
        await asyncio.sleep(12)
        assert process.held(key).quarantined == "ValueError: no JSON"
        good = await world.create("good")
        await world.submit(good, "i1")
        await world.until_rest(good)


@in_virtual_time
async def test_a_log_that_is_away_while_a_transcript_is_scanned_is_asked_again() -> None:
    model = PlayedModel()
    async with world_of(model) as world:
        key, process = await with_cold_transcript(world, model)

        async def away(_: ThreadKey) -> None:
            world.broker.is_away = True

        process.runtime._transcripts.store = type("Away", (), {"load": staticmethod(away)})()  # type: ignore[assignment]
        await world.submit(key, "i2", text="second")
        await asyncio.sleep(3)

        async def back(_: ThreadKey) -> None:
            return None

        process.runtime._transcripts.store = type("Back", (), {"load": staticmethod(back)})()  # type: ignore[assignment]
        world.broker.come_back()
        await world.until_rest(key, turns=2)
        assert said(model.requests[-1]) == ["first", "done", "second"]
