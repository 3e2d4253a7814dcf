"""`threadlog tail THREAD` prints the records of a thread, one line each, and follows it."""

import asyncio
import sys
from contextlib import aclosing
from typing import Annotated

import typer

from services.cli.connection import TENANT, URL, Tenant, Token, Url, connect
from services.cli.show import line
from services.client.client import ClientError
from services.client.sse import Fact


def tail(
    thread: Annotated[str, typer.Argument(help="Id of the thread.")],
    after: Annotated[int, typer.Option(help="Skip records up to this seq.", min=0)] = 0,
    until_turn_end: Annotated[bool, typer.Option("--until-turn-end", help="Exit when the next turn ends.")] = False,
    raw: Annotated[bool, typer.Option("--json", help="Print each record as a line of JSON.")] = False,
    url: Url = URL,
    token: Token = None,
    tenant: Tenant = TENANT,
) -> None:
    """Print the records of a thread and follow it. Reconnects by itself."""

    async def follow() -> None:
        async with (
            connect(url, token, tenant) as client,
            aclosing(client.follow(thread, after, until_turn_end=until_turn_end)) as events,
        ):
            async for event in events:
                if isinstance(event, Fact):
                    print(event.raw.decode() if raw else line(event), flush=True)

    try:
        asyncio.run(follow())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)
    except ClientError as error:
        sys.exit(f"threadlog: {error}")
