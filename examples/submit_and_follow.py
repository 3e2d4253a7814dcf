"""Submit an input and follow the turn: `python -m examples.submit_and_follow "run ls"`.

`follow` yields every record of the thread once and in order, whatever happens to the connection. So a program that dies
can continue: keep the seq of the last record that was handled, and pass it as `after`.
"""

import argparse
import asyncio
from contextlib import aclosing

from services.client.client import Fact, ThreadlogClient


async def submit_and_follow(url: str, text: str) -> None:
    async with ThreadlogClient(url, tenant="dev", subject="example") as client:
        # The key makes the command safe to send again. Derive it from what it is about, such as an order's number.
        accepted = await client.create_thread(text=text, title="An example")
        async with aclosing(client.follow(accepted.thread, until_turn_end=True)) as events:
            async for event in events:
                if isinstance(event, Fact):
                    print(f"{event.seq:>3}  {event.kind:<28} {event.effect}")
        # The views may be a moment behind the stream: `at_least` waits until they contain what the stream has shown.
        items = await client.items(accepted.thread, at_least=event.seq if isinstance(event, Fact) else None)
        for item in items["data"] if isinstance(items["data"], list) else ():
            print(item)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Submit an input and follow the turn.")
    parser.add_argument("text", nargs="?", default="Say hello.")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    arguments = parser.parse_args()
    asyncio.run(submit_and_follow(arguments.url, arguments.text))
