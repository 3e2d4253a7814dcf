"""Consume thread-effects and count what happened: `python -m examples.effects_consumer --kafka 127.0.0.1:9092`.

An effect says what a record did, with what can be counted, so a consumer need not fold (docs/effects.md). They come at
least once: per partition, an effect whose offset is not above the last one's is a copy. Keep that offset in the same
transaction as what you make of the effects.
"""

import argparse
import asyncio
from collections import Counter

from aiokafka import AIOKafkaConsumer

from schemas.other_topics.effects import decode_effect


async def consume(kafka: str, thread: str | None) -> None:
    consumer = AIOKafkaConsumer("thread-effects", bootstrap_servers=kafka, auto_offset_reset="earliest")
    last: dict[int, int] = {}
    counted: Counter[str] = Counter()
    await consumer.start()
    try:
        async for record in consumer:
            effect = decode_effect(record.value)
            if effect is None or effect.offset <= last.get(effect.partition, -1):
                continue
            last[effect.partition] = effect.offset
            if effect.effect != "applied" or (thread is not None and effect.thread != thread):
                continue
            counted[effect.type] += 1
            if effect.type == "turn.ended":
                print(f"{effect.tenant}/{effect.thread}: {dict(counted)}", flush=True)
                if thread is not None:
                    return
    finally:
        await consumer.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Count what happened in threads.")
    parser.add_argument("--kafka", default="127.0.0.1:9092", help="bootstrap servers")
    parser.add_argument("--thread", help="count this thread alone, and exit when its turn has ended")
    arguments = parser.parse_args()
    asyncio.run(consume(arguments.kafka, arguments.thread))
