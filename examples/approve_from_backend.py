"""Decide about calls that wait for approval: `python -m examples.approve_from_backend --deny "rm "`.

A decision is bound to the hash of the call as it was shown: if an approver edited the arguments meanwhile, it is
refused. The first decision counts. Whoever is second gets a 409 that says who was first.
"""

import argparse
import asyncio
import json

from services.client.client import JsonObject, RefusedError, ThreadlogClient

POLL_SECONDS = 0.5


async def approve(url: str, deny: str, decisions: int) -> None:
    async with ThreadlogClient(url, tenant="dev", subject="approval-backend") as client:
        while decisions > 0:
            page = await client.approvals()
            waiting = (
                [call for call in page["data"] if isinstance(call, dict)] if isinstance(page["data"], list) else []
            )
            for call in waiting:
                decisions -= await decide(client, call, deny)
            await asyncio.sleep(0 if waiting else POLL_SECONDS)


async def decide(client: ThreadlogClient, call: JsonObject, deny: str) -> bool:
    """Approve the call, unless its arguments contain the forbidden text. Return whether this decision counted."""
    thread, name, arguments = str(call["thread"]), str(call["call"]), json.dumps(call["args"])
    is_allowed = not (deny and deny in arguments)
    reason = None if is_allowed else f"the arguments contain {deny!r}"
    try:
        await client.decide(thread, name, str(call["call_hash"]), approve=is_allowed, reason=reason)
    except RefusedError as error:
        print(f"{thread} {name}: not decided here: {error}")
        return False
    print(f"{thread} {name} {call['tool']} {arguments}: {'approved' if is_allowed else 'denied'}", flush=True)
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Decide about calls that wait for approval.")
    parser.add_argument("--deny", default="", help="deny calls whose arguments contain this text")
    parser.add_argument("--decisions", type=int, default=1_000_000, help="exit after so many decisions")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    arguments = parser.parse_args()
    asyncio.run(approve(arguments.url, arguments.deny, arguments.decisions))
