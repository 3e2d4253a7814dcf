"""Whether a topic is still the one that was read, on the simulated log."""

from services.chassis.clock import SystemClock
from services.chassis.log.port import Incoming, Outgoing, TopicPartition
from services.projector.generations.record_digests import digest_of, replaced_records
from tests.support.simulated.log import SimulatedBroker

RECORD = Incoming("t", 0, 3, 1_000, b"key", b"value", (("name", b"x"),))
TP = TopicPartition("thread-events", 0)
OTHER = TopicPartition("thread-events", 1)


def test_a_digest_is_of_all_that_the_writer_has_put_in() -> None:
    same = RECORD._replace(topic="u", partition=1, offset=9, timestamp_ms=2_000)
    assert digest_of(same) == digest_of(RECORD)
    others = [
        RECORD._replace(key=None),
        RECORD._replace(key=b""),
        RECORD._replace(value=None),
        RECORD._replace(key=b"keyv", value=b"alue"),
        RECORD._replace(headers=()),
        RECORD._replace(headers=(("nam", b"ex"),)),
        RECORD._replace(headers=(("name", b"x"), ("name", b"x"))),
    ]
    assert len({digest_of(record) for record in [RECORD, *others]}) == len(others) + 1


async def test_partitions_with_another_record_there_are_found() -> None:
    broker = SimulatedBroker({TP.topic: 2}, SystemClock())
    log = broker.connect("test")
    for tp in (TP, OTHER):
        await log.appender.append(tp.topic, tp.partition, [Outgoing(b"k", b"%d" % offset) for offset in range(4)])
    digests = {tp: (2, digest_of(broker.records(tp.topic, tp.partition)[2])) for tp in (TP, OTHER)}
    assert await replaced_records(log, digests, 5) == []
    assert await replaced_records(log, digests | {OTHER: (1, digests[OTHER][1])}, 5) == [OTHER]
    assert await replaced_records(log, digests | {TP: (2, "another")}, 5) == [TP]
    assert await replaced_records(log, {}, 0.1) == []


async def test_what_does_not_come_in_time_is_not_judged() -> None:
    broker = SimulatedBroker({TP.topic: 2}, SystemClock())
    log = broker.connect("test")
    await log.appender.append(TP.topic, TP.partition, [Outgoing(b"k", b"v")])
    assert await replaced_records(log, {TP: (1, "not written yet")}, 0.2) == []
