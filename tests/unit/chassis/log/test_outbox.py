import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from services.chassis.log.outbox import BatchResult, OutboxCounts, Outboxes, OutboxLimits, record_bytes_bound
from services.chassis.log.port import LogError, LogUnavailableError, Outgoing
from tests.support.simulated.virtual_time import run_virtual

LIMITS = OutboxLimits(
    batch_bytes_max=1_000,
    queue_bytes_max=100_000,
    lossy_bytes_max=2_000,
    record_bytes_max=5_000,
    delivery_timeout_seconds=10,
)
ROUND_TRIP_SECONDS = 0.01


class Sender:
    """Stores batches after a round trip; `plan` holds what to answer instead, in order."""

    def __init__(self) -> None:
        self.batches: list[list[bytes | None]] = []
        self.stored: list[bytes | None] = []
        self.plan: list[LogError | None] = []
        self.is_silent = False

    def send(
        self, topic: str, partition: int, records: Sequence[Outgoing], done: Callable[[BatchResult], None]
    ) -> None:
        values = [each.value for each in records]
        self.batches.append(values)
        planned = self.plan.pop(0) if self.plan else None
        if self.is_silent:
            return
        result: BatchResult = len(self.stored)
        if planned is None:
            self.stored.extend(values)
        else:
            result = planned
        asyncio.get_running_loop().call_later(ROUND_TRIP_SECONDS, done, result)


class Case:
    def __init__(self, limits: OutboxLimits = LIMITS) -> None:
        self.sender = Sender()
        self.counts = OutboxCounts()
        self.outboxes = Outboxes(self.sender, limits, self.counts)

    def append(self, *values: bytes, partition: int = 0) -> asyncio.Future[tuple[int, ...]]:
        return self.outboxes.append("topic", partition, [Outgoing(b"key", value) for value in values])


def test_appends_of_one_iteration_are_one_batch_and_later_ones_wait_for_it() -> None:
    async def main() -> None:
        case = Case()
        first, second = case.append(b"a", b"b"), case.append(b"c")
        assert case.sender.batches == []
        await asyncio.sleep(0)
        third, fourth = case.append(b"d"), case.append(b"e")
        await asyncio.sleep(0)
        assert case.sender.batches == [[b"a", b"b", b"c"]]
        assert [await each for each in (first, second, third, fourth)] == [(0, 1), (2,), (3,), (4,)]
        assert case.sender.batches == [[b"a", b"b", b"c"], [b"d", b"e"]]
        assert (case.counts.records, case.counts.batches) == (5, 2)

    run_virtual(main())


def test_partitions_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        case = Case()
        appends = [case.append(b"a", partition=n) for n in range(3)]
        await asyncio.sleep(0)
        assert len(case.sender.batches) == 3
        await asyncio.gather(*appends)

    run_virtual(main())


def test_a_call_is_not_cut_when_it_fits_a_batch_of_its_own() -> None:
    async def main() -> None:
        case = Case()
        appends = [case.append(*[b"%d" % n * 150] * 4) for n in range(3)]
        assert [await each for each in appends] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
        assert [len(batch) for batch in case.sender.batches] == [4, 4, 4]

    run_virtual(main())


def test_a_call_larger_than_a_batch_is_cut_and_keeps_its_place() -> None:
    async def main() -> None:
        case = Case()
        values = [b"%d" % n * 400 for n in range(5)]
        before, large, after = case.append(b"x"), case.append(*values), case.append(b"y")
        assert (await before, await large, await after) == ((0,), (1, 2, 3, 4, 5), (6,))
        assert case.sender.stored == [b"x", *values, b"y"]
        assert [len(batch) for batch in case.sender.batches] == [1, 2, 2, 1, 1]

    run_virtual(main())


def test_a_retriable_error_is_retried_before_what_came_later() -> None:
    async def main() -> None:
        case = Case()
        case.sender.plan = [LogUnavailableError("away"), LogUnavailableError("away"), None]
        first = case.append(b"a")
        await asyncio.sleep(0)
        second = case.append(b"b")
        assert (await first, await second) == ((0,), (1,))
        assert case.sender.batches == [[b"a"], [b"a"], [b"a"], [b"b"]]
        assert case.counts.retries == 2
        backoffs = 0.05 + 0.1
        assert asyncio.get_running_loop().time() == pytest.approx(backoffs + 4 * ROUND_TRIP_SECONDS)

    run_virtual(main())


def test_a_terminal_error_fails_its_batch_only() -> None:
    async def main() -> None:
        case = Case()
        case.sender.plan = [LogError("no rights"), None]
        first = case.append(b"a")
        await asyncio.sleep(0)
        second = case.append(b"b")
        with pytest.raises(LogError, match="no rights"):
            await first
        assert await second == (0,)

    run_virtual(main())


def test_an_append_fails_at_its_deadline_and_what_was_queued_is_not_sent() -> None:
    async def main() -> None:
        case = Case()
        case.sender.is_silent = True
        sent = case.append(b"sent")
        await asyncio.sleep(0)
        queued = case.append(b"queued")
        await asyncio.sleep(5)
        later = case.append(b"later")
        for append in (sent, queued):
            with pytest.raises(LogUnavailableError, match="topic/0 did not acknowledge") as failed:
                await append
            assert failed.value.retriable
        assert 10 <= asyncio.get_running_loop().time() <= 11
        assert not later.done()
        assert case.sender.batches == [[b"sent"]]
        with pytest.raises(LogUnavailableError):
            await later
        assert case.counts.appends_failed == 3

    run_virtual(main())


def test_a_broker_that_comes_back_gets_only_what_is_still_wanted() -> None:
    async def main() -> None:
        case = Case()
        case.sender.plan = [LogUnavailableError("away")] * 40
        old = case.append(b"old")
        await asyncio.sleep(8)
        new = case.append(b"new")
        with pytest.raises(LogUnavailableError):
            await old
        case.sender.plan.clear()
        assert await new == (0,)
        assert case.sender.stored == [b"new"]

    run_virtual(main())


def test_a_record_too_large_is_refused_with_its_whole_call() -> None:
    async def main() -> None:
        case = Case()
        refused = case.append(b"small", b"x" * 6_000)
        assert refused.done()
        with pytest.raises(LogError, match="larger than the 5000"):
            await refused
        assert await case.append(b"next") == (0,)
        assert case.sender.stored == [b"next"]

    run_virtual(main())


def test_a_full_queue_refuses_at_once() -> None:
    async def main() -> None:
        case = Case(replace(LIMITS, queue_bytes_max=1_500))
        case.sender.is_silent = True
        case.append(b"x" * 900)
        refused = case.append(b"x" * 900)
        with pytest.raises(LogUnavailableError, match="already holds"):
            await refused

    run_virtual(main())


def test_lossy_appends_are_dropped_when_too_much_waits() -> None:
    async def main() -> None:
        case = Case()
        case.sender.is_silent = True
        deltas = [Outgoing(b"key", b"x" * 500)] * 2
        for _ in range(3):
            case.outboxes.append_lossy("topic", 0, deltas)
        case.outboxes.append_lossy("topic", 0, [])
        assert case.counts.lossy_records_dropped == 4
        case.outboxes.append_lossy("topic", 1, [Outgoing(b"key", b"x" * 9_000)])
        assert case.counts.lossy_records_dropped == 5
        await asyncio.sleep(20)
        assert case.counts.lossy_records_dropped == 7
        assert case.counts.appends_failed == 0

    run_virtual(main())


def test_flush_waits_for_what_was_queued_before_also_when_it_fails() -> None:
    async def main() -> None:
        case = Case()
        await case.outboxes.flush()
        case.sender.plan = [None, LogError("no rights")]
        first = case.append(b"a")
        await asyncio.sleep(0)
        second = case.append(b"b")
        await case.outboxes.flush()
        assert first.done() and second.done()
        case.sender.is_silent = True
        third = case.append(b"c")
        await case.outboxes.flush()
        assert isinstance(third.exception(), LogUnavailableError)

    run_virtual(main())


def test_flush_is_not_held_up_by_later_appends() -> None:
    async def main() -> None:
        case = Case()
        appends = [case.append(b"a")]

        async def append_on() -> None:
            for _ in range(100):
                appends.append(case.append(b"more"))
                await asyncio.sleep(ROUND_TRIP_SECONDS / 2)

        appending = asyncio.ensure_future(append_on())
        await case.outboxes.flush()
        assert not appending.done()
        await appending

    run_virtual(main())


def test_a_cancelled_wait_does_not_take_the_record_back() -> None:
    async def main() -> None:
        case = Case()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(ROUND_TRIP_SECONDS / 2):
                await case.append(b"a")
        assert await case.append(b"b") == (1,)
        assert case.sender.stored == [b"a", b"b"]

    run_virtual(main())


def test_closing_fails_what_is_outstanding_and_what_comes() -> None:
    async def main() -> None:
        case = Case()
        sent = case.append(b"sent")
        await asyncio.sleep(0)
        queued = case.append(b"queued")
        case.outboxes.close(LogError("closed"))
        case.outboxes.append_lossy("topic", 0, [Outgoing(b"key", b"x")])
        for append in (sent, queued, case.append(b"late")):
            with pytest.raises(LogError, match="closed"):
                await append
        await asyncio.sleep(1)
        assert case.sender.batches == [[b"sent"]]

    run_virtual(main())


def test_an_append_of_nothing_is_done() -> None:
    async def main() -> None:
        assert await Case().append() == ()

    run_virtual(main())


def test_the_size_of_a_record_is_not_underestimated() -> None:
    plain = Outgoing(b"k" * 10, b"v" * 100)
    assert record_bytes_bound(plain) >= 110
    with_headers = plain._replace(headers=(("name", b"value"), ("empty", b"")))
    assert record_bytes_bound(with_headers) >= record_bytes_bound(plain) + len("namevalueempty")
    assert record_bytes_bound(plain._replace(value=None)) == record_bytes_bound(plain) - 100
