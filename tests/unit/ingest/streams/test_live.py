import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from schemas.other_topics.progress import Delta, Heartbeat, ToolOutput
from schemas.thread import Verdict
from services.chassis.log.port import Outgoing
from services.chassis.threads.states import StatesUnavailableError
from services.ingest.streams import watched_thread
from services.ingest.streams.live import BehindError, CursorError, TooManyWatchesError
from services.ingest.streams.watch import Watch, WatchCutError
from services.ingest.streams.watched_thread import TailLimits
from tests.support.simulated.log import Faults
from tests.support.simulated.virtual_time import run_virtual
from tests.support.worlds.live import CREATED, DESCRIBED, KEY, OTHER, LiveWorld, live_limits, live_world, seqs

APPLIED = Verdict("applied")
NO_WARMTH = live_limits(warm_records=0)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(**fixtures: Any) -> None:
        run_virtual(test(**fixtures))

    return run


async def read(watch: Watch, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        frames = await watch.next(1.0)
        assert frames, f"only {found}"
        found += [frame.seq for frame in frames if frame.seq]
    return found


# Verdicts


@virtual
async def test_a_verdict_is_what_the_fold_made_of_the_record() -> None:
    async with live_world() as world:
        offsets = await world.append(CREATED, CREATED)
        verdicts = [await world.watches.verdict(KEY, offset, 1.0) for offset in offsets]
        assert [(judged.seq, judged.verdict) for judged in verdicts if judged] == [
            (1, APPLIED),
            (2, Verdict("superseded", "the thread exists")),
        ]


@virtual
async def test_a_verdict_comes_when_the_record_is_read() -> None:
    async with live_world(faults=Faults(1, fetch_seconds_max=0.5)) as world:
        [offset] = await world.append(CREATED)
        judged = await world.watches.verdict(KEY, offset, 5.0)
        assert judged is not None
        assert judged.state.exists


@virtual
async def test_a_verdict_on_what_the_row_already_holds_comes_from_the_view() -> None:
    async with live_world() as world:
        [offset, _] = await world.append(CREATED, DESCRIBED)
        world.project()
        judged = await world.watches.verdict(KEY, offset, 1.0)
        assert judged is not None
        assert (judged.seq, judged.verdict, judged.state.title) == (1, APPLIED, "a title")


@virtual
async def test_a_verdict_that_cannot_be_told_is_none() -> None:
    async with live_world() as world:
        [offset] = await world.append(CREATED)
        assert await world.watches.verdict(KEY, offset + 1, 0.5) is None
        world.views.is_away = True
        assert await world.watches.verdict(OTHER, offset, 0.5) is None


# Starts


@virtual
async def test_a_thread_created_here_needs_no_database() -> None:
    async with live_world() as world:
        world.views.is_away = True
        [offset, _] = await world.append(CREATED, DESCRIBED)
        world.watches.note_created(KEY, offset)
        watch = await world.watches.watch(KEY, 0)
        assert await read(watch, 2) == [1, 2]
        assert world.watches.counts.starts_without_database == 1


@virtual
async def test_history_comes_from_the_view_and_goes_on_live() -> None:
    async with live_world(live_limits(warm_records=0, history_page_records=2)) as world:
        await world.append(CREATED, *[DESCRIBED] * 4)
        world.project()
        await world.append(DESCRIBED)
        watch = await world.watches.watch(KEY, 1)
        assert await read(watch, 5) == [2, 3, 4, 5, 6]
        await world.append(DESCRIBED)
        assert await read(watch, 1) == [7]
        assert watch.seq == 7


@virtual
async def test_what_the_ring_does_not_hold_is_read_from_the_log() -> None:
    async with live_world(live_limits(warm_records=0, ring_bytes_max=0)) as world:
        await world.append(CREATED, *[DESCRIBED] * 3)
        watch = await world.watches.watch(KEY, 2)
        assert await read(watch, 2) == [3, 4]
        assert world.watches.counts.catch_ups == 1


@virtual
async def test_a_start_too_far_behind_is_refused() -> None:
    limits = live_limits(warm_records=0, ring_bytes_max=0, catch_up_records_max=2)
    async with live_world(limits, faults=Faults(1, poll_records_max=2)) as world:
        await world.append(CREATED, *[DESCRIBED] * 9)
        await asyncio.sleep(1)
        with pytest.raises(BehindError):
            await world.watches.watch(KEY, 0)
        assert world.watches.counts.threads == 0


@virtual
async def test_a_restarted_process_begins_a_little_before_the_end() -> None:
    async with live_world(live_limits(warm_records=10)) as world:
        await world.append(CREATED, DESCRIBED)
        await world.stop()
        await world.start()
        watch = await world.watches.watch(KEY, 1)
        assert await read(watch, 1) == [2]
        assert world.watches.counts.catch_ups == 0


@virtual
async def test_without_database_open_watches_go_on_and_new_ones_are_refused() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        await world.append(CREATED, key=OTHER)
        watch = await world.watches.watch(KEY, 0)
        world.views.is_away = True
        await world.append(DESCRIBED)
        assert await read(watch, 2) == [1, 2]
        second = await world.watches.watch(KEY, 0)
        assert await read(second, 2) == [1, 2]
        with pytest.raises(StatesUnavailableError):
            await world.watches.watch(OTHER, 0)


@virtual
async def test_views_that_fell_back_are_waited_for() -> None:
    async with live_world() as world:
        await world.append(CREATED, DESCRIBED)
        await world.append(CREATED, key=OTHER)
        world.project()
        (await world.watches.watch(KEY, 0)).close()
        world.views.fallen_back_to = 1
        with pytest.raises(BehindError):
            await world.watches.watch(OTHER, 0)
        asyncio.get_running_loop().call_later(1.0, setattr, world.views, "fallen_back_to", None)
        watch = await world.watches.watch(OTHER, 0)
        assert await read(watch, 1) == [1]


@virtual
async def test_watches_that_come_together_share_one_start() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        watches = await asyncio.gather(*[world.watches.watch(KEY, 0) for _ in range(3)])
        assert world.views.loads == 1
        assert [await read(watch, 1) for watch in watches] == [[1], [1], [1]]


@virtual
async def test_a_start_that_its_client_gave_up_is_taken_over() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        world.views.fallen_back_to = -1
        first = asyncio.create_task(world.watches.watch(KEY, 0))
        second = asyncio.create_task(world.watches.watch(KEY, 0))
        await asyncio.sleep(0.1)
        first.cancel()
        world.views.fallen_back_to = None
        assert await read(await second, 1) == [1]


# Cursors


@virtual
async def test_a_cursor_ahead_of_the_reader_is_not_judged_while_the_log_is_away() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        world.broker.is_away = True
        with pytest.raises(BehindError):
            await world.watches.watch(KEY, 1_000)
        world.broker.come_back()


@virtual
async def test_a_cursor_beyond_the_end_is_refused() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        with pytest.raises(CursorError):
            await world.watches.watch(KEY, 2)


@virtual
async def test_a_client_may_be_ahead_of_this_process() -> None:
    async with live_world(faults=Faults(3, fetch_seconds_max=1.0)) as world:
        await world.append(CREATED, DESCRIBED, DESCRIBED)
        watch = await world.watches.watch(KEY, 3)
        await world.append(DESCRIBED)
        assert await read(watch, 1) == [4]


# What a watch shows


@virtual
async def test_progress_is_shown_live_only_and_before_the_facts_it_came_with() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        watch = await world.watches.watch(KEY, 0)
        assert await read(watch, 1) == [1]
        delta = Delta(turn=1, step=1, attempt=1, text="Hi")
        await world.append_progress(delta, Heartbeat(call="1.1.0", attempt=1, claim="c"))
        await world.append_progress(ToolOutput(call="1.1.0", attempt=1, text="out"))
        await world.append_progress(delta, key=OTHER)
        shown = [*await watch.next(1.0), *await watch.next(1.0)]
        assert [frame.sse for frame in shown] == [
            b'event: delta\ndata: {"kind":"delta","turn":1,"step":1,"attempt":1,"text":"Hi"}\n\n',
            b'event: tool_output\ndata: {"kind":"tool_output","call":"1.1.0","attempt":1,"text":"out"}\n\n',
        ]
        late = await world.watches.watch(KEY, 0)
        assert seqs(list(await late.next(1.0))) == [1]
        assert await late.next(0.1) == ()


@virtual
async def test_a_record_outside_its_keys_partition_is_not_of_the_thread() -> None:
    async with live_world(partitions=2) as world:
        await world.append(CREATED)
        watch = await world.watches.watch(KEY, 0)
        made = world.broker.records("thread-events", world.partition(KEY))[0]
        stray = Outgoing(KEY.to_bytes(), made.value, made.headers)
        await world.append_raw(stray, partition=1 - world.partition(KEY))
        await world.append(DESCRIBED)
        assert await read(watch, 2) == [1, 2]
        assert await watch.next(0.1) == ()


@virtual
async def test_a_client_that_falls_behind_is_cut_with_its_cursor() -> None:
    async with live_world(live_limits(warm_records=0, tail=TailLimits(records_max=2))) as world:
        await world.append(CREATED)
        slow, quick = await world.watches.watch(KEY, 0), await world.watches.watch(KEY, 0)
        assert await read(slow, 1) == [1]
        for seq in range(2, 6):
            await world.append(DESCRIBED)
            await read(quick, seq - quick.seq)
        with pytest.raises(WatchCutError, match="slow"):
            await slow.next(1.0)
        world.project()
        again = await world.watches.watch(KEY, slow.seq)
        assert await read(again, 4) == [2, 3, 4, 5]


@virtual
async def test_one_poll_may_exceed_the_tail_without_cutting_anybody() -> None:
    async with live_world(live_limits(warm_records=0, tail=TailLimits(1_000, bytes_max=1))) as world:
        await world.append(CREATED)
        watch = await world.watches.watch(KEY, 0)
        assert await read(watch, 1) == [1]
        await world.append(*[DESCRIBED] * 5)
        assert await read(watch, 5) == [2, 3, 4, 5, 6]


@virtual
async def test_a_view_that_stays_behind_cuts_a_watch_of_history() -> None:
    async with live_world(live_limits(warm_records=0, ring_bytes_max=0, tail=TailLimits(records_max=1))) as world:
        await world.append(CREATED, *[DESCRIBED] * 5)
        await asyncio.sleep(1)
        watch = await world.watches.watch(KEY, 0)
        await world.append(DESCRIBED)
        with pytest.raises(WatchCutError, match="behind"):
            await watch.next(1.0)


# Limits and ends


@virtual
async def test_a_thread_leaves_memory_after_its_last_watch() -> None:
    async with live_world() as world:
        await world.append(CREATED)
        watch = await world.watches.watch(KEY, 0)
        watch.close()
        watch.close()
        assert (world.watches.counts.watches, world.watches.counts.threads) == (0, 1)
        await asyncio.sleep(NO_WARMTH.grace_seconds - 0.5)
        back = await world.watches.watch(KEY, 0)
        await asyncio.sleep(NO_WARMTH.grace_seconds)
        assert world.views.loads == 1
        back.close()
        await asyncio.sleep(NO_WARMTH.grace_seconds + 0.1)
        assert world.watches.counts.threads == 0


@virtual
async def test_watches_have_a_limit() -> None:
    async with live_world(live_limits(watches_max=1)) as world:
        await world.append(CREATED)
        watch = await world.watches.watch(KEY, 0)
        with pytest.raises(TooManyWatchesError):
            await world.watches.watch(KEY, 0)
        watch.close()
        await world.watches.watch(KEY, 0)


@virtual
async def test_stopping_ends_watches_after_what_they_have() -> None:
    async with live_world() as world:
        [offset] = await world.append(CREATED)
        watch = await world.watches.watch(KEY, 0)
        waiting = asyncio.create_task(world.watches.verdict(KEY, offset + 1, 60.0))
        await asyncio.sleep(0.1)
        world.watches.stop()
        assert await read(watch, 1) == [1]
        with pytest.raises(WatchCutError, match="stopping"):
            await watch.next(1.0)
        assert await waiting is None
        with pytest.raises(BehindError):
            await world.watches.watch(KEY, 0)


@virtual
async def test_a_fold_that_fails_ends_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_world() as world:
        await world.append(CREATED)
        await world.append(CREATED, key=OTHER)
        broken, whole = await world.watches.watch(KEY, 0), await world.watches.watch(OTHER, 0)
        await _break_fold(world, monkeypatch)
        await world.append(DESCRIBED, key=OTHER)
        assert await read(whole, 2) == [1, 2]
        assert await read(broken, 1) == [1]
        with pytest.raises(WatchCutError, match="could not be folded"):
            await broken.next(1.0)
        assert world.watches.counts.folds_failed == 1


async def _break_fold(world: LiveWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(watched_thread, "fold", broken)
        await world.append(DESCRIBED)
        await asyncio.sleep(0.1)
