"""`threadlog chat` is a conversation in the terminal.

Reading a line is the main thread's, between turns; a turn runs in the event loop. So line editing works, and Ctrl-C
means what it should: at the prompt it leaves, during a turn it cancels the turn. A line that is typed during a turn
steers it. While a person decides about a call, nothing is read from the service; should it cut the stream meanwhile,
the client comes back by its cursor.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Annotated, Final, TypeAlias

import typer

from services.cli.connection import TENANT, URL, Tenant, Token, Url, connect
from services.cli.show import Conversation
from services.client.client import ClientError, RefusedError, Resolution, ThreadlogClient
from services.client.sse import Fact, JsonObject

PROMPT: Final = "> "
APPROVAL: Final = "may {call} run? [y/N] "
REFUSAL: Final = "the person at the terminal said no"
PLAN: Final = "follow plan {version}? [y/N] "
RESOLUTION: Final = "what became of {call}? [s]ucceeded, [f]ailed, run it [a]gain, [g]ive it up; Enter leaves it open: "
KNOWLEDGE: Final = "how do you know? (the model reads it, too) "
RESOLUTIONS: Final[dict[str, Resolution]] = {"s": "succeeded", "f": "failed", "a": "again", "g": "abandoned"}
LINE_BYTES_MAX: Final = 65_536
"""Longest line that is read during a turn."""

Ask: TypeAlias = Callable[[ThreadlogClient, str, JsonObject], Awaitable[None]]


def chat(
    model: Annotated[str | None, typer.Option(help="Model, such as openai:NAME [default: the service's].")] = None,
    thread: Annotated[str | None, typer.Option(help="Continue this thread.")] = None,
    instructions: Annotated[str | None, typer.Option(help="Instructions of the new thread.")] = None,
    url: Url = URL,
    token: Token = None,
    tenant: Tenant = TENANT,
) -> None:
    """Talk to an agent. During a turn, a line that you type steers it and Ctrl-C cancels it. You are asked about calls
    that wait for a decision. At the prompt, Ctrl-C or Ctrl-D leaves.
    """
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() history and editing
    config: JsonObject = {}
    if model is not None:
        config["model"] = model
    if instructions is not None:
        config["instructions"] = instructions
    with asyncio.Runner() as runner:
        lines = sys.stdin.fileno() if sys.stdin.isatty() else None
        chatting = Chat(config, thread, colors=sys.stdout.isatty(), lines=lines)
        try:
            runner.run(chatting.open(url, token, tenant))
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
        print(f"Continue later with: threadlog chat --thread {chatting.thread}")


class Chat:
    """A conversation about one thread. Questions to the person block the event loop on purpose: nothing else may write
    to the terminal meanwhile.
    """

    def __init__(self, config: JsonObject, thread: str | None, *, colors: bool, lines: int | None = None) -> None:
        """Begin without a connection. Each line that arrives at the file descriptor `lines` during a turn steers it."""
        self.thread = thread
        self._config = config
        self._shown = Conversation(colors=colors)
        self._lines = lines
        self._after = 0
        self._client: ThreadlogClient | None = None
        self._commands: set[asyncio.Task[None]] = set()

    async def open(self, url: str, token: str | None, tenant: str) -> None:
        """Show what was said before. An open turn is followed until it ends."""
        self._client = connect(url, token, tenant)
        if self.thread is None:
            return
        await self._catch_up(self._client, self.thread)
        if self._shown.open_turn is not None:
            with self._heard(self._client, self.thread):
                await self._go_on(self._client, self.thread)

    async def close(self) -> None:
        """Drop commands that are under way, and close the connection."""
        for command in self._commands:
            command.cancel()
        if self._client is not None:
            await self._client.aclose()

    async def turn(self, text: str) -> None:
        """Submit the text, and show what happens until the turn ends."""
        client = self._client
        assert client is not None, "open() comes first"
        if self.thread is None:
            accepted = await client.create_thread(text=text, config=self._config or None)
            self.thread = accepted.thread
        else:
            accepted = await client.submit(self.thread, text)
        with self._heard(client, self.thread):
            await self._follow(client, self.thread)

    async def _go_on(self, client: ThreadlogClient, thread: str) -> None:
        """Ask first about what waits for a person: it may have waited for long."""
        for row in _rows(await client.approvals(thread=thread, at_least=self._after)):
            await self._ask_about(client, thread, row, self._decide)
        for row in _rows(await client.unknown_calls(thread=thread, at_least=self._after)):
            await self._ask_about(client, thread, row, self._resolve)
        await self._ask_about_plan(client, thread, self._after)
        await self._follow(client, thread)

    async def _follow(self, client: ThreadlogClient, thread: str) -> None:
        """Show the thread's records as they come, and ask about what waits for a person, until the turn ends."""
        async with aclosing(client.follow(thread, self._after)) as events:
            async for event in events:
                if not isinstance(event, Fact):
                    _write(self._shown.live(event))
                    continue
                self._after = event.seq
                _write(self._shown.fact(event))
                if not event.applied:
                    continue
                if event.kind == "tool_call.approval_requested":
                    await self._ask_about(client, thread, event.data, self._decide)
                if event.kind == "plan.proposed":
                    await self._ask_about_plan(client, thread, event.seq)
                if event.kind == "tool_call.lost":
                    await self._ask_about_lost(client, thread, event)
                if event.kind == "turn.ended":
                    return

    async def _ask_about_plan(self, client: ThreadlogClient, thread: str, seq: int) -> None:
        """Ask about the plan version that waits, unless a policy answers it."""
        config = (await client.get(f"/v1/threads/{thread}", {"at_least": seq})).get("config")
        if not isinstance(config, dict) or config.get("plan_approval") != "always":
            return
        for version in _rows(await client.plan(thread, at_least=seq, limit=1)):
            if version["status"] == "waiting":
                await self._ask_about(client, thread, version, self._decide_plan)

    async def _decide_plan(self, client: ThreadlogClient, thread: str, plan: JsonObject) -> None:
        """Ask about a plan version and send the decision."""
        version = int(str(plan["version"]))
        answer = self._asked(client, thread, PLAN.format(version=version))
        if answer is None:
            return
        approve = answer.lower() in {"y", "yes"}
        await client.decide_plan(thread, version, approve=approve, reason=None if approve else REFUSAL)

    async def _ask_about_lost(self, client: ThreadlogClient, thread: str, lost: Fact) -> None:
        """Ask about a lost call if it is unknown now: that depends on more than the record of its loss."""
        for row in _rows(await client.unknown_calls(thread=thread, at_least=lost.seq)):
            if row["call"] == lost.data["call"]:
                await self._ask_about(client, thread, row, self._resolve)

    async def _ask_about(self, client: ThreadlogClient, thread: str, call: JsonObject, ask: Ask) -> None:
        """Ask, and show a refusal instead of ending the chat: somebody else may have answered first."""
        try:
            await ask(client, thread, call)
        except RefusedError as error:
            _write(f"({error})\n")

    async def _decide(self, client: ThreadlogClient, thread: str, call: JsonObject) -> None:
        """Ask about a call that waits for approval, and send the decision."""
        name, call_hash = str(call["call"]), str(call["call_hash"])
        answer = self._asked(client, thread, APPROVAL.format(call=name))
        if answer is None:
            return
        approve = answer.lower() in {"y", "yes"}
        await client.decide(thread, name, call_hash, approve=approve, reason=None if approve else REFUSAL)

    async def _resolve(self, client: ThreadlogClient, thread: str, call: JsonObject) -> None:
        """Ask what became of an unknown call, and settle it. An empty answer leaves it open."""
        name, attempt = str(call["call"]), int(str(call["attempt"]))
        answer = self._asked(client, thread, RESOLUTION.format(call=name))
        decision = RESOLUTIONS.get(answer[:1].lower()) if answer else None
        if decision is None:
            return
        note = self._asked(client, thread, KNOWLEDGE)
        if not note:
            return
        result = note if decision in {"succeeded", "failed"} else None
        await client.resolve(thread, name, attempt, decision, note=note, result=result)

    def _asked(self, client: ThreadlogClient, thread: str, question: str) -> str | None:
        """Return the answer, or None after cancelling the turn, if the person pressed Ctrl-C instead."""
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGINT)
        answer = _ask(question)
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt, client, thread)
        if answer is None:
            self._on_interrupt(client, thread)
        return None if answer is None else answer.strip()

    @contextmanager
    def _heard(self, client: ThreadlogClient, thread: str) -> Iterator[None]:
        """Listen for Ctrl-C and lines while a turn runs."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt, client, thread)
        if self._lines is not None:
            loop.add_reader(self._lines, self._on_line, self._lines, client, thread)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            if self._lines is not None:
                loop.remove_reader(self._lines)

    async def _catch_up(self, client: ThreadlogClient, thread: str) -> None:
        """Show what was said before, and set the cursor after it."""
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
        """Cancel the open turn. Before it has started there is nothing to cancel."""
        turn = self._shown.open_turn
        if turn is None:
            _write("\n(the turn has not started yet)\n")
            return
        self._start(_cancel(client, thread, turn))

    def _on_line(self, lines: int, client: ThreadlogClient, thread: str) -> None:
        """Steer the turn with a line. A terminal delivers whole lines."""
        try:
            text = os.read(lines, LINE_BYTES_MAX).decode(errors="replace").strip()
        except OSError:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(lines)
            return
        if text:
            self._start(_steer(client, thread, text, self._shown.open_turn))

    def _start(self, command: Coroutine[None, None, None]) -> None:
        """Send a command beside the stream, and keep its task until it is done."""
        task = asyncio.get_running_loop().create_task(command)
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)


def _rows(page: JsonObject) -> list[JsonObject]:
    """Return the rows of a page."""
    rows = page["data"]
    assert isinstance(rows, list)
    return [row for row in rows if isinstance(row, dict)]


async def _steer(client: ThreadlogClient, thread: str, text: str, turn: int | None) -> None:
    """Send a steering input for the open turn only: after its end it must not start another one."""
    try:
        await client.submit(thread, text, mode="steer", expected_turn=turn)
    except ClientError as error:
        _write(f"\n(not taken: {error})\n")


async def _cancel(client: ThreadlogClient, thread: str, turn: int) -> None:
    """Cancel the turn, and show why that is not possible."""
    try:
        await client.cancel(thread, turn)
    except ClientError as error:
        _write(f"\n(cannot cancel: {error})\n")


def _ask(prompt: str) -> str | None:
    """Return the line, or None if the person leaves."""
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        print()
        return None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
