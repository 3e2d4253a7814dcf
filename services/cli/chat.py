"""`threadlog chat`: a conversation in the terminal.

Reading a line is the main thread's, between turns; a turn runs in the event loop. So line editing works, and Ctrl-C
means what it should: at the prompt it leaves, during a turn it cancels the turn. While a person decides about a call,
nothing is read from the service; should it cut the stream meanwhile, the client comes back by its cursor.
"""

import asyncio
import signal
import sys
from contextlib import aclosing, suppress
from typing import Annotated

import typer

from services.cli.connection import TENANT, URL, Tenant, Token, Url, connect
from services.cli.show import Conversation
from services.client.client import ClientError, RefusedError, ThreadlogClient
from services.client.sse import Fact, JsonObject

PROMPT = "> "
APPROVAL = "may {call} run? [y/N] "
REFUSAL = "the person at the terminal said no"


def chat(
    model: Annotated[str | None, typer.Option(help="Such as openai:NAME; without it, the service's default.")] = None,
    thread: Annotated[str | None, typer.Option(help="Go on with this thread.")] = None,
    instructions: Annotated[str | None, typer.Option(help="The new thread's instructions.")] = None,
    url: Url = URL,
    token: Token = None,
    tenant: Tenant = TENANT,
) -> None:
    """Talk to an agent. Ctrl-C cancels the turn; at the prompt, Ctrl-C or Ctrl-D leaves."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() history and editing
    config: JsonObject = {}
    if model is not None:
        config["model"] = model
    if instructions is not None:
        config["instructions"] = instructions
    with asyncio.Runner() as runner:
        chatting = Chat(config, thread, colors=sys.stdout.isatty())
        runner.run(chatting.open(url, token, tenant))
        try:
            while True:
                text = _ask(PROMPT)
                if text is None:
                    break
                if text.strip():
                    runner.run(chatting.turn(text))
        except ClientError as error:
            sys.exit(f"threadlog: {error}")
        finally:
            runner.run(chatting.close())
    if chatting.thread is not None:
        print(f"Go on later with: threadlog chat --thread {chatting.thread}")


class Chat:
    def __init__(self, config: JsonObject, thread: str | None, *, colors: bool) -> None:
        self.thread = thread
        self._config = config
        self._shown = Conversation(colors=colors)
        self._after = 0
        self._client: ThreadlogClient | None = None
        self._cancelling: set[asyncio.Task[None]] = set()

    async def open(self, url: str, token: str | None, tenant: str) -> None:
        self._client = connect(url, token, tenant)
        if self.thread is not None:
            await self._catch_up(self._client, self.thread)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def turn(self, text: str) -> None:
        """Submits, and shows what happens until the turn has ended."""
        client = self._client
        assert client is not None, "open() comes first"
        if self.thread is None:
            accepted = await client.create_thread(text=text, config=self._config or None)
            self.thread = accepted.thread
        else:
            accepted = await client.submit(self.thread, text)
        self._cancel_on_interrupt(client, self.thread)
        try:
            async with aclosing(client.follow(self.thread, self._after)) as events:
                async for event in events:
                    if not isinstance(event, Fact):
                        _write(self._shown.live(event))
                        continue
                    self._after = event.seq
                    _write(self._shown.fact(event))
                    if event.kind == "tool_call.approval_requested" and event.applied:
                        await self._decide(client, self.thread, event)
                    if event.kind == "turn.ended" and event.applied:
                        return
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)

    async def _decide(self, client: ThreadlogClient, thread: str, request: Fact) -> None:
        call, call_hash = str(request.data["call"]), str(request.data["call_hash"])
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        answer = _ask(APPROVAL.format(call=call))
        self._cancel_on_interrupt(client, thread)
        if answer is None:
            self._on_interrupt(client, thread)
            return
        approve = answer.strip().lower() in {"y", "yes"}
        try:
            await client.decide(thread, call, call_hash, approve=approve, reason=None if approve else REFUSAL)
        except RefusedError as error:
            _write(f"({error})\n")

    def _cancel_on_interrupt(self, client: ThreadlogClient, thread: str) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._on_interrupt, client, thread)

    async def _catch_up(self, client: ThreadlogClient, thread: str) -> None:
        """What was said before, and the cursor after it."""
        while True:
            page = await client.events(thread, after=self._after, limit=100)
            events = page["events"]
            assert isinstance(events, list)
            for body in events:
                assert isinstance(body, dict)
                fact = Fact.of(body)
                self._after = fact.seq
                _write(self._shown.fact(fact))
            if page["end"]:
                return

    def _on_interrupt(self, client: ThreadlogClient, thread: str) -> None:
        turn = self._shown.open_turn
        if turn is None:
            _write("\n(the turn has not started yet)\n")
            return
        task = asyncio.get_running_loop().create_task(_cancel(client, thread, turn))
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)


async def _cancel(client: ThreadlogClient, thread: str, turn: int) -> None:
    try:
        await client.cancel(thread, turn)
    except ClientError as error:
        _write(f"\n(cannot cancel: {error})\n")


def _ask(prompt: str) -> str | None:
    """None where the person leaves."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
