"""MCP servers as sources of tools.

Theory of operation. Each server has one long-lived task, `McpServer.serve`. It connects, lists the tools, keeps the
connection open, and connects again after growing pauses when it is lost. It is one task because cancel scopes of the
SDK must be entered and left in the same task. Calls run in the tasks of their callers, on the client that this task
holds open; a call that finds no connection waits a little and is then handed back.

The outcome of a call depends on what was seen of it, and errs on the side of `lost`:

    the server answered                          succeeded or failed, as it says
    it was never sent, or the session was gone   not_started: it may be tried again
    the connection ended while it ran            lost: it may have had its effect
    it took too long, or was cancelled           the server is told to stop, but its end is not seen: lost. A pure tool
                                                 leaves nothing behind, so it is timed_out or cancelled

A server over stdio serves all threads of the executor, so it is not restarted for a single call that hangs. Its death
is noticed by the end of its standard error, often before the SDK notices that its output has ended.
"""

import asyncio
import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, cast

import anyio
import mcp_types
import structlog
from mcp import Client
from mcp.client.session import IncomingMessage
from mcp.shared.exceptions import MCPError
from pydantic import JsonValue, ValidationError

from schemas.tools import IDEMPOTENCY_META_KEY, ToolSpec
from services.chassis.artifacts.store import UNTYPED
from services.chassis.sanitize import sanitize_json, sanitize_text
from services.tool_executor.attachments import JSON, Attachment, Attachments, whole_text
from services.tool_executor.offering.catalog import McpTools, mcp_entry
from services.tool_executor.offering.mcp_transports import (
    NO_ANSWER,
    NOT_SENT,
    SESSION_GONE,
    Watched,
    http_transport,
    stdio_transport,
)
from services.tool_executor.offering.tools_file import McpServerConfig, ToolPolicy
from services.tool_executor.output import INLINE_BYTES_MAX, structured_result, text_result
from services.tool_executor.tools import Emit, Outcome, ToolEnd, ToolRequest
from services.tool_executor.workspace.process import Warden
from services.tool_executor.workspace.sandbox import RefusedError, Sandbox

LIST_PAGES_MAX: Final = 50
"""Pages of a server's list of tools. A server whose list never ends must not keep its connection from being used."""
MEDIA_TYPE_CHARACTERS_MAX: Final = 200
NAME_CHARACTERS_MAX: Final = 500
BLOBS_MAX: Final = 100
"""Images and other blobs of one answer. The event of the call's end names each of them, and its size is limited."""
STDERR_WAIT_SECONDS: Final = 0.2
"""How long the last words of a server that died are waited for, as evidence."""
DEATH_CHECKS: Final = 40
DEATH_CHECK_SECONDS: Final = 0.05
"""A server whose standard error has ended is looked at so often, two seconds in all. After that it counts as alive: it
may merely have closed its standard error.
"""
CLIENT = mcp_types.Implementation(name="threadlog", version="1")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a lost server is connected again."""

    first_seconds: float = 0.2
    most_seconds: float = 30.0
    steady_seconds: float = 10.0
    """A connection that lasted this long was a good one, so the pauses start again from the first."""


@dataclass(slots=True)
class _Link:
    """A connection lives from its handshake to its loss."""

    client: Client
    watched: Watched | None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False


class McpServer:
    """Runs the tools of one server. `on_tools` gets its tools after the first connection and whenever they change."""

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        pool: str,
        policies: Mapping[str, ToolPolicy],
        sandbox: Sandbox,
        warden: Warden,
        on_tools: Callable[["McpServer", McpTools], None],
        backoff: Backoff = Backoff(),  # frozen
        output_bytes_max: int = INLINE_BYTES_MAX,
    ) -> None:
        self.name = name
        self.problem: str | None = "it was not connected yet"
        self._config = config
        self._pool = pool
        self._policies = policies
        self._sandbox = sandbox
        self._warden = warden
        self._on_tools = on_tools
        self._backoff = backoff
        self._output_bytes_max = output_bytes_max
        self._tools: McpTools | None = None
        self._specs: dict[str, ToolSpec] = {}
        self._link: _Link | None = None
        self._linked = asyncio.Event()

    async def serve(self) -> None:
        """Keep the server connected until cancelled."""
        delay = self._backoff.first_seconds
        while True:
            since = time.monotonic()
            watched = None if self._config.command is None else Watched(self._warden)
            failure = await self._connection(watched)
            self.problem = "it ended the connection" if failure is None else _told(failure)
            if time.monotonic() - since >= self._backoff.steady_seconds:
                delay = self._backoff.first_seconds
            said = [] if watched is None else list(watched.lines)
            log.warning("mcp_server_lost", server=self.name, problem=self.problem, stderr=said, retry_in_seconds=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, self._backoff.most_seconds)

    async def wait_connected(self, seconds: float) -> bool:
        """Wait for a connection and return whether there is one."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._linked.wait(), seconds)
        return self._link is not None

    async def run(self, request: ToolRequest, emit: Emit, cancelled: asyncio.Event, /) -> ToolEnd:
        started = time.monotonic()

        def ended(outcome: Outcome, text: str, evidence: bool = True) -> ToolEnd:
            return ToolEnd(
                outcome, text_result(text, True), text if evidence else None, seconds=time.monotonic() - started
            )

        link = await self._wait_link(min(self._config.call_wait_seconds, request.timeout_seconds), cancelled)
        if link is None:
            return ended("not_started", f"The MCP server {self.name} is not connected: {self.problem}.")
        if cancelled.is_set():
            return ended("not_started", "cancelled before it began")
        spec, own_name = self._specs.get(request.tool), self._own_name(request.tool)
        if spec is None or own_name is None:
            return ended("failed", f"The MCP server {self.name} no longer has the tool `{request.tool}`.", False)
        try:
            args = self._with_bound(request)
        except RefusedError as error:
            return ended("failed", str(error), False)
        timeout_seconds = max(0.0, request.timeout_seconds - (time.monotonic() - started))
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(self._ask(link, own_name, args, request.idempotency_key, emit, started))
            stopping = group.create_task(cancelled.wait())
            await asyncio.wait({asking, stopping}, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            stopped = stopping.done()
            stopping.cancel()
            if not asking.done():
                asking.cancel()  # the SDK then sends `notifications/cancelled`
        if not asking.cancelled():
            return asking.result()
        if stopped:
            outcome: Outcome = "cancelled" if spec.effect == "pure" else "lost"
            return ended(outcome, f"cancelled; the MCP server {self.name} was told, its end was not seen")
        outcome = "timed_out" if spec.effect == "pure" else "lost"
        waited = f"{request.timeout_seconds:g} s"
        return ended(outcome, f"no answer from the MCP server {self.name} within {waited}; it was told to stop")

    # The connection

    async def _connection(self, watched: Watched | None) -> Exception | None:
        """Open one connection, hold it, and return what ended it.

        The SDK ends a server politely: it closes the input, waits, and then kills. A task that is cancelled meanwhile
        would break that off and leave the server running. So the connection has a task of its own, which is cancelled
        only through its scope, while this one waits. If this one is cancelled twice, the server is killed at once.
        """
        scope = anyio.CancelScope()
        cancelled = 0
        async with asyncio.TaskGroup() as group:
            holding = group.create_task(self._held(scope, watched))
            while not holding.done():
                try:
                    await asyncio.wait({holding})
                except asyncio.CancelledError:
                    cancelled += 1
                    scope.cancel()
                    if cancelled > 1 and watched is not None:
                        watched.release()
            if cancelled:
                raise asyncio.CancelledError
            return holding.result()

    async def _held(self, scope: anyio.CancelScope, watched: Watched | None) -> Exception | None:
        try:
            with scope:
                await self._hold(scope, watched)
        except Exception as error:  # noqa: BLE001  # a foreign program may fail in any way; it is tried again
            return error
        finally:
            self._link = None
            self._linked.clear()
        return TimeoutError() if scope.cancelled_caught else None

    async def _hold(self, scope: anyio.CancelScope, watched: Watched | None) -> None:
        """Return when the connection is lost; raise what made it fail."""
        transport = (
            http_transport(self._config) if watched is None else stdio_transport(self._config, self._warden, watched)
        )
        wake = asyncio.Event()
        # The client is entered here and left at the end, so that its handshake can have no scope of its own.
        timer = asyncio.get_running_loop().call_later(self._config.connect_seconds, self._give_up, scope)
        try:
            async with Client(
                transport, client_info=CLIENT, message_handler=_WakesOnNewTools(wake), cache=None
            ) as client:
                tools = await _listed(client)
                timer.cancel()
                self._offer(tools)
                link = _Link(client, watched, wake)
                self._link, self.problem = link, None
                self._linked.set()
                log.info("mcp_server_connected", server=self.name, tools=len(tools))
                async with anyio.create_task_group() as group:
                    if watched is not None:
                        group.start_soon(self._lose_when_dead, link, watched)
                    await self._keep(link)
                    group.cancel_scope.cancel()
        finally:
            timer.cancel()

    def _give_up(self, scope: anyio.CancelScope) -> None:
        """End a connection whose handshake or first list took too long."""
        self.problem = _told(TimeoutError())  # set now: ending the transport comes first and takes a while
        scope.cancel()

    async def _keep(self, link: _Link) -> None:
        """List the tools again when the server says that they changed, and now and then in case it does not say so."""
        while not link.lost:
            with anyio.move_on_after(self._config.relist_seconds):
                await link.wake.wait()
            link.wake.clear()
            if not link.lost:
                with anyio.fail_after(self._config.connect_seconds):
                    self._offer(await _listed(link.client))

    async def _lose_when_dead(self, link: _Link, watched: Watched) -> None:
        """Give the connection up if the process of the server is gone after its standard error has ended."""
        await watched.ended.wait()
        for _ in range(DEATH_CHECKS):
            if not watched.alive():
                self._lose(link)
                return
            await asyncio.sleep(DEATH_CHECK_SECONDS)

    def _lose(self, link: _Link) -> None:
        """Keep further calls from using the connection, and wake the task that holds it, so that it lets go."""
        link.lost = True
        link.wake.set()
        if self._link is link:
            self._link, self.problem = None, "the connection was lost a moment ago"
            self._linked.clear()

    def _offer(self, listed: Sequence[mcp_types.Tool]) -> None:
        """Pass the tools on, unless they are the same as before: every offer is a record in the catalog."""
        tools = mcp_entry(self._pool, self.name, self._config, listed, self._policies)
        if tools == self._tools:
            return
        self._tools = tools
        self._specs = dict(tools.specs)
        self._on_tools(self, tools)

    async def _wait_link(self, seconds: float, cancelled: asyncio.Event) -> _Link | None:
        """Return the connection, waiting for one if there is none: a server that restarts is back in a moment."""
        if self._link is None and not cancelled.is_set():
            await self.wait_connected(seconds)
        return self._link

    # One call

    async def _ask(
        self, link: _Link, tool: str, args: dict[str, JsonValue], idempotency_key: str, emit: Emit, started: float
    ) -> ToolEnd:
        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
            emit(sanitize_text(f"{message} ({share})\n" if message else f"{share}\n"))

        def ended(outcome: Outcome, text: str, evidence: str | None = None) -> ToolEnd:
            result = text_result(text, True, self._output_bytes_max)
            return ToolEnd(outcome, result, evidence, seconds=time.monotonic() - started)

        meta = cast("mcp_types.RequestParamsMeta", {IDEMPOTENCY_META_KEY: idempotency_key})
        try:
            answer = await link.client.call_tool(tool, args, progress_callback=progressed, meta=meta)
        except MCPError as error:
            # The code says how far the request got, and so whether the tool may have run.
            if error.code == SESSION_GONE:
                self._lose(link)
            if error.code in {NOT_SENT, SESSION_GONE}:
                return ended("not_started", error.message, f"the MCP server {self.name}: {error.message}")
            if error.code in {mcp_types.CONNECTION_CLOSED, NO_ANSWER}:
                if error.code == mcp_types.CONNECTION_CLOSED and link.watched is not None:
                    self._lose(link)
                text = await self._last_words(link, error.message)
                return ended("lost", text, text)
            return ended("failed", f"The MCP server {self.name} answered with an error: {error.message}")
        except (RuntimeError, ValidationError) as error:
            # It answered, so it ran, but the answer breaks the protocol or its own output schema.
            return ended("failed", f"The MCP server {self.name} gave an answer that does not fit: {error}")
        result, attachments = _result(answer, self._output_bytes_max)
        outcome: Outcome = "failed" if answer.is_error else "succeeded"
        return ToolEnd(outcome, result, attachments=attachments, seconds=time.monotonic() - started)

    async def _last_words(self, link: _Link, problem: str) -> str:
        """Return the evidence of a lost call, with the last lines that a local server wrote before it died."""
        text = f"the MCP server {self.name} was asked, and its answer was not seen: {problem}"
        if link.watched is None:
            return text
        with suppress(TimeoutError):
            await asyncio.wait_for(link.watched.ended.wait(), STDERR_WAIT_SECONDS)
        said = " | ".join(list(link.watched.lines)[-3:])
        return f"{text}; it last said: {sanitize_text(said)}" if said else text

    def _own_name(self, tool: str) -> str | None:
        """Return the server's own name of the tool, without the prefix; None if it no longer has the tool."""
        return None if self._tools is None else self._tools.server_names.get(tool)

    def _with_bound(self, request: ToolRequest) -> dict[str, JsonValue]:
        """Return the arguments with those that the operator binds. These win over what a model sends.

        Raises RefusedError if the thread's workspace cannot be entered.
        """
        bound = self._config.bound_arguments
        if not bound:
            return request.args
        room = self._sandbox.enter(request.tenant, request.thread, request.environment)
        places = {
            "{workspace}": str(room.workspace),
            "{cwd}": str(room.cwd),
            "{tenant}": request.tenant,
            "{thread}": request.thread,
        }
        filled: dict[str, JsonValue] = {}
        for name, template in bound.items():
            text = template
            for place, value in places.items():
                text = text.replace(place, value)
            filled[name] = text
        return request.args | filled


async def _listed(client: Client) -> list[mcp_types.Tool]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(LIST_PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


class _WakesOnNewTools:
    """Receives messages of the server. The only one of interest says that its tools have changed."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake

    async def __call__(self, message: IncomingMessage) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self._wake.set()


def _result(answer: mcp_types.CallToolResult, bytes_max: int) -> tuple[JsonValue, Attachments]:
    texts: list[str] = []
    attachments: list[Attachment] = []
    for place, block in enumerate(answer.content, 1):
        match block:
            case mcp_types.TextContent():
                texts.append(block.text)
            case (
                mcp_types.ImageContent(data=data, mime_type=media_type)
                | mcp_types.AudioContent(data=data, mime_type=media_type)
            ):
                name = f"{media_type.partition('/')[0]}-{place}"
                attachments += _blob(data, media_type, name, texts, len(attachments))
            case mcp_types.ResourceLink():
                texts.append(f"[resource {block.uri}]")
            case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
                texts.append(resource.text)
            case mcp_types.EmbeddedResource(resource=mcp_types.BlobResourceContents() as resource):
                media_type = resource.mime_type or UNTYPED
                attachments += _blob(resource.blob, media_type, str(resource.uri), texts, len(attachments))
    bytes_left_out = sum(attachment.size for attachment in attachments)
    structured = sanitize_json(answer.structured_content)
    # Servers repeat a structured answer as text for older clients; once is enough.
    if structured is not None and len(texts) == 1 and _same_json(texts[0], structured):
        texts = []
    result = structured_result(texts, structured, answer.is_error, bytes_max)
    if isinstance(result, dict) and result["bytes_cut"]:
        attachments += whole_text("\n".join(texts), bytes_max=bytes_max)
        if structured is not None and "structured" not in result:
            encoded = json.dumps(structured, ensure_ascii=False).encode()
            attachments.append(Attachment(encoded, JSON, "structured.json"))
    if isinstance(result, dict) and bytes_left_out:
        result = result | {"bytes_cut": int(str(result["bytes_cut"])) + bytes_left_out}
    return result, tuple(attachments)


def _blob(encoded: str, media_type: str, name: str, texts: list[str], before: int) -> Attachments:
    """Return a blob as an attachment, and add a line in its place to the texts. `before` counts the earlier ones."""
    shown_type = sanitize_text(media_type)[:MEDIA_TYPE_CHARACTERS_MAX] or UNTYPED
    shown_name = sanitize_text(name)[:NAME_CHARACTERS_MAX]
    if before >= BLOBS_MAX:
        texts.append(f"[{shown_name}: {shown_type}, not kept: an answer may have {BLOBS_MAX} of them]")
        return ()
    try:
        attachment = Attachment(base64.b64decode(encoded, validate=True), shown_type, shown_name, is_output=False)
    except ValueError:
        texts.append(f"[{shown_name}: {shown_type}, {len(encoded)} characters that are no base64, not kept]")
        return ()
    texts.append(f"[{shown_name}: {shown_type}, {attachment.size} bytes, artifact {attachment.sha256}]")
    return (attachment,)


def _same_json(text: str, value: JsonValue) -> bool:
    """Return whether the text is the value as JSON, however it is written."""
    try:
        return sanitize_json(json.loads(text)) == value
    except ValueError:
        return False


def _told(error: BaseException) -> str:
    """Return the messages of the innermost errors: the SDK nests them in groups whose own text says nothing."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_told(inner) for inner in error.exceptions))
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return str(error) or type(error).__name__
