"""Run a tool in your own backend: `python -m examples.client_tool THREAD`.

A client tool is declared in the tools file under `client_tools`. No executor runs it: your backend sees
`tool_call.dispatched` with the pool `client` on the thread's stream, does the work, and posts the result. The first
result counts. If this process dies in between, the next one finds the call by following the thread from the beginning.
"""

import argparse
import asyncio
from contextlib import aclosing

from services.client.client import Fact, JsonValue, RefusedError, ThreadlogClient

TOOL = "ask_customer"


def ask_customer(question: str, idempotency_key: str) -> JsonValue:
    """Ask the customer. The key is the same for every attempt: use it to ask only once."""
    return {"answer": f"large, please ({question})", "asked_with": idempotency_key[:8]}


async def serve(url: str, thread: str) -> None:
    done: set[str] = set()
    async with (
        ThreadlogClient(url, tenant="dev", subject="customer-backend") as client,
        aclosing(client.follow(thread, until_turn_end=True)) as events,
    ):
        async for event in events:
            if not isinstance(event, Fact) or not event.applied:
                continue
            data = event.data
            if event.kind == "tool_call.finished":
                done.add(str(data["call"]))
            if event.kind != "tool_call.dispatched" or data["tool"] != TOOL or str(data["call"]) in done:
                continue
            arguments = data["args"] if isinstance(data["args"], dict) else {}
            result = ask_customer(str(arguments.get("question")), str(data["idempotency_key"]))
            try:
                await client.post_result(thread, str(data["call"]), outcome="succeeded", result=result)
                print(f"{data['call']}: {result}", flush=True)
            except RefusedError as error:
                print(f"{data['call']}: another result was first: {error}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the client tool ask_customer for one thread.")
    parser.add_argument("thread", help="id of the thread")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.url, arguments.thread))
