"""The Python client: submits, follows, and comes back by itself.

Every command carries an Idempotency-Key, so that sending it again after a lost answer is safe, and is sent again while
the service is away or busy. `follow` keeps the cursor: across any number of connections it yields each seq once, in
order.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Final, Literal, NamedTuple, Self, TypeAlias, cast
from urllib.parse import quote, urlencode

import httpx2
import orjson
from pydantic import JsonValue

from services.chassis.backoff import backoff_seconds
from services.chassis.clock import draw_id
from services.client.sse import Cut, Fact, JsonObject, Live, SseParser, StreamError, StreamItem

RETRIED_STATUSES: Final = frozenset({429, 502, 503, 504})
"""HTTP statuses after which the same request may succeed."""
MAY_BE_DONE: Final = frozenset({"log-unavailable", "stopping"})
"""Problems after which a command may have been stored all the same."""
ANSWER_BYTES_SHOWN: Final = 500
"""How much of an answer that is not ours an error message quotes."""
CONNECTIONS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=15.0)
"""Their number has no bound: a caller has as many as it has requests and streams at once. Idle ones are closed well
before the service would.
"""

Query: TypeAlias = Mapping[str, str | int | None]
DecisionScope: TypeAlias = Literal["call", "turn", "thread"]
Resolution: TypeAlias = Literal["succeeded", "failed", "again", "abandoned"]


class ClientError(Exception):
    """Base of this client's errors: the service refused something, or cannot be reached."""


class RefusedError(ClientError):
    """The service answered with a problem (RFC 9457), and sending the same again will not help."""

    def __init__(self, status: int, body: JsonObject) -> None:
        self.status = status
        self.body = body
        self.problem = _name(body)
        """Its name in the catalogue, such as `thread-not-found`."""
        super().__init__(f"{status} {self.problem}: {body.get('detail') or body.get('title') or 'no reason given'}")


class UnreachableError(ClientError):
    """The service did not answer, or was busy, for as long as this client tries."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """How long this client waits and tries. Seconds everywhere."""

    connect_seconds: float = 5.0
    """For a connection to be made."""
    answer_seconds: float = 30.0
    """For the server to answer, or to continue an answer."""
    silence_seconds: float = 45.0
    """For the next byte on a stream: three of the server's heartbeats."""
    backoff_seconds_min: float = 0.05
    """Pause before the second try; it doubles with each one."""
    backoff_seconds_max: float = 2.0
    retry_after_seconds_max: float = 10.0
    """A server that asks for a longer pause is asked again after this one."""
    give_up_seconds: float = 60.0
    """How long a request is tried again, and `follow` tries to come back without receiving anything."""


class Accepted(NamedTuple):
    """The answer to a command: it is in the log."""

    thread: str
    body: JsonObject
    """`events`, `position`, and with `wait_applied` also `seq`, `effect`, `reason`."""


class ThreadlogClient:
    """`token` is an API key. Without one, `tenant` and `subject` are those of the service's development mode."""

    def __init__(
        self,
        base_url: str,
        *,
        token: str | None = None,
        tenant: str = "dev",
        subject: str = "dev",
        keyed: bool = True,
        transport: httpx2.AsyncBaseTransport | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        """`keyed=False`: commands for which the caller gives no Idempotency-Key go without one. They are sent again
        only where they cannot have arrived.
        """
        self._base = base_url.rstrip("/")
        self._keyed = keyed
        self._limits = limits or ClientLimits()
        if transport is None:
            tls = _tls(self._base)
            self._transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(verify=tls, limits=CONNECTIONS)
            # Streams have a pool of their own: each request looks through all connections of its pool.
            self._stream_transport: httpx2.AsyncBaseTransport = httpx2.AsyncHTTPTransport(
                verify=tls, limits=CONNECTIONS
            )
        else:
            self._transport = self._stream_transport = transport
        if token is not None:
            self._headers = [(b"authorization", f"Bearer {token}".encode())]
        else:
            self._headers = [(b"x-threadlog-tenant", tenant.encode()), (b"x-threadlog-subject", subject.encode())]
        self._loop = asyncio.get_running_loop()
        limits = self._limits
        self._answer_timeouts = _timeouts(limits.connect_seconds, limits.answer_seconds)
        self._stream_timeouts = _timeouts(limits.connect_seconds, limits.silence_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._transport.aclose()
        await self._stream_transport.aclose()

    # Commands

    async def create_thread(
        self,
        *,
        text: str | None = None,
        config: JsonObject | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        ephemeral: bool = False,
        idempotency_key: str | None = None,
        wait_applied: bool = False,
    ) -> Accepted:
        """`text` is the first input: it starts the first turn. An `ephemeral` thread leaves no history."""
        body: JsonObject = {}
        if text is not None:
            body["input"] = {"text": text}
        if config is not None:
            body["config"] = config
        if title is not None:
            body["title"] = title
        if labels is not None:
            body["labels"] = dict(labels)
        if ephemeral:
            body["ephemeral"] = True
        return await self.command("/v1/threads", body, idempotency_key, wait_applied=wait_applied)

    async def submit(
        self,
        thread: str,
        text: str,
        *,
        mode: str | None = None,
        expected_turn: int | None = None,
        idempotency_key: str | None = None,
        wait_applied: bool = False,
    ) -> Accepted:
        """`mode` is queue (the default), steer, interrupt or reject."""
        body: JsonObject = {"text": text}
        if mode is not None:
            body["mode"] = mode
        if expected_turn is not None:
            body["expected_turn"] = expected_turn
        path = f"/v1/threads/{quote(thread, safe='')}/inputs"
        return await self.command(path, body, idempotency_key, wait_applied=wait_applied)

    async def cancel(
        self,
        thread: str,
        turn: int,
        *,
        note: str | None = None,
        discard: bool = False,
        idempotency_key: str | None = None,
        wait_applied: bool = False,
    ) -> Accepted:
        """Cancel an open turn. `discard` also drops steering inputs that no step took."""
        body: JsonObject = {}
        if note is not None:
            body["note"] = note
        if discard:
            body["discard"] = True
        path = f"/v1/threads/{quote(thread, safe='')}/turns/{turn}/cancel"
        return await self.command(path, body, idempotency_key, wait_applied=wait_applied)

    async def configure(
        self, thread: str, config: JsonObject, *, idempotency_key: str | None = None, wait_applied: bool = False
    ) -> Accepted:
        """`config` is a merge patch (RFC 7396), in force from the next turn on."""
        path = f"/v1/threads/{quote(thread, safe='')}"
        return await self.command(path, {"config": config}, idempotency_key, wait_applied=wait_applied, method="PATCH")

    async def withdraw(
        self, thread: str, input_id: str, *, idempotency_key: str | None = None, wait_applied: bool = False
    ) -> Accepted:
        """Take an input back. With `wait_applied` the answer's `effect` says whether it was still there."""
        path = f"/v1/threads/{quote(thread, safe='')}/inputs/{quote(input_id, safe='')}/withdraw"
        return await self.command(path, {}, idempotency_key, wait_applied=wait_applied)

    async def close_thread(
        self,
        thread: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        wait_applied: bool = False,
    ) -> Accepted:
        """Close the thread for good: the open turn is cancelled, the queue is dropped, and nothing can be submitted any
        more.
        """
        body: JsonObject = {} if reason is None else {"reason": reason}
        path = f"/v1/threads/{quote(thread, safe='')}/close"
        return await self.command(path, body, idempotency_key, wait_applied=wait_applied)

    async def decide(
        self,
        thread: str,
        call: str,
        call_hash: str,
        *,
        approve: bool,
        reason: str | None = None,
        scope: DecisionScope = "call",
        tool: str | None = None,
        args: JsonObject | None = None,
        idempotency_key: str | None = None,
    ) -> Accepted:
        """Approve or deny a tool call that waits. `call_hash` is that of the call as it was shown.

        An approval may be for more than this call: with the scope `turn` or `thread` for the same call whenever it
        comes again, with `tool` for every call of that tool. `args` replace the arguments that were proposed. The
        `reason` of a denial is told to the model. Raises RefusedError (409) where somebody else was first: `decided` in
        its body says who, and what.
        """
        body: JsonObject = {"decision": "approve" if approve else "deny", "call_hash": call_hash}
        if reason is not None:
            body["reason"] = reason
        if scope != "call":
            body["scope"] = scope
        if tool is not None:
            body["tool"] = tool
        if args is not None:
            body["args"] = args
        return await self.command(f"{_call_path(thread, call)}/decision", body, idempotency_key)

    async def post_result(
        self,
        thread: str,
        call: str,
        *,
        outcome: Literal["succeeded", "failed"],
        result: JsonValue = None,
        idempotency_key: str | None = None,
    ) -> Accepted:
        """Report how a client tool's call ended that this client has run. The first result counts; another one raises
        RefusedError (409).
        """
        body: JsonObject = {"outcome": outcome, "result": result}
        return await self.command(f"{_call_path(thread, call)}/result", body, idempotency_key)

    async def resolve(
        self,
        thread: str,
        call: str,
        attempt: int,
        decision: Resolution,
        *,
        note: str,
        result: JsonValue = None,
        idempotency_key: str | None = None,
    ) -> Accepted:
        """Settle a call whose outcome is unknown, at the attempt that was shown: it `succeeded` or `failed`, with that
        result; it may run `again`; or it is `abandoned`. `note` says how that is known. Raises RefusedError (409) where
        the call is not unknown.
        """
        body: JsonObject = {"attempt": attempt, "decision": decision, "note": note}
        if result is not None:
            body["result"] = result
        return await self.command(f"{_call_path(thread, call)}/resolution", body, idempotency_key)

    async def propose_plan(
        self,
        thread: str,
        tasks: Sequence[JsonObject],
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> Accepted:
        """Propose a version of the thread's plan: tasks with `id`, `title` and, where they have any, `depends_on` and
        `instructions`. Raises RefusedError (409) where `version` is given and is not the next.
        """
        body: JsonObject = {"tasks": list(tasks)}
        if version is not None:
            body["version"] = version
        return await self.command(f"/v1/threads/{quote(thread, safe='')}/plan", body, idempotency_key)

    async def decide_plan(
        self,
        thread: str,
        version: int,
        *,
        approve: bool,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> Accepted:
        """Approve or, with a `reason`, reject a version that waits. Raises RefusedError (409) where it does not."""
        body: JsonObject = {"decision": "approve" if approve else "reject"}
        if reason is not None:
            body["reason"] = reason
        path = f"/v1/threads/{quote(thread, safe='')}/plan/{version}/decision"
        return await self.command(path, body, idempotency_key)

    async def command(
        self,
        path: str,
        body: JsonObject,
        idempotency_key: str | None = None,
        *,
        wait_applied: bool = False,
        method: str = "POST",
    ) -> Accepted:
        """Send any other command of the API. Raises RefusedError, UnreachableError."""
        key = idempotency_key or (draw_id() if self._keyed else None)
        headers = [(b"content-type", b"application/json")]
        if key is not None:
            headers.append((b"idempotency-key", key.encode()))
        url = f"{self._base}{path}?wait=applied" if wait_applied else self._base + path
        answer = await self._ask(method, url, headers, orjson.dumps(body), is_repeatable=key is not None)
        return Accepted(str(answer.get("thread", "")), answer)

    async def put_artifact(self, data: bytes, media_type: str) -> JsonObject:
        """Store content once, whoever stores it again. Return `sha256`, `size`, `media_type`. Raises RefusedError,
        UnreachableError.
        """
        url = f"{self._base}/v1/artifacts/{sha256(data).hexdigest()}"
        return await self._ask("PUT", url, [(b"content-type", media_type.encode())], data, is_repeatable=True)

    # Reads

    async def thread(self, thread: str) -> JsonObject:
        """Return the thread's row."""
        return await self.get(f"/v1/threads/{quote(thread, safe='')}")

    async def threads(self, **query: str | int | None) -> JsonObject:
        return await self.get("/v1/threads", query)

    async def turns(self, thread: str, **query: str | int | None) -> JsonObject:
        return await self.get(f"/v1/threads/{quote(thread, safe='')}/turns", query)

    async def inputs(self, thread: str, **query: str | int | None) -> JsonObject:
        """Return a page of inputs, each with the turn and step that took it, or with what dropped it."""
        return await self.get(f"/v1/threads/{quote(thread, safe='')}/inputs", query)

    async def items(self, thread: str, **query: str | int | None) -> JsonObject:
        return await self.get(f"/v1/threads/{quote(thread, safe='')}/items", query)

    async def tool_calls(self, thread: str, **query: str | int | None) -> JsonObject:
        return await self.get(f"/v1/threads/{quote(thread, safe='')}/tool-calls", query)

    async def state(self, thread: str, **query: str | int | None) -> JsonObject:
        """Return the folded state and the context; `at` names an earlier seq."""
        return await self.get(f"/v1/threads/{quote(thread, safe='')}/state", query)

    async def plan(self, thread: str, **query: str | int | None) -> JsonObject:
        """Return the versions of the thread's plan, the newest first, each with its graph."""
        return await self.get(f"/v1/threads/{quote(thread, safe='')}/plan", query)

    async def approvals(self, **query: str | int | None) -> JsonObject:
        """Return the tenant's calls that wait for a decision; `thread` narrows them to one thread."""
        return await self.get("/v1/approvals", query)

    async def unknown_calls(self, **query: str | int | None) -> JsonObject:
        """Return the tenant's calls whose outcome is unknown and that wait for a person; `thread` narrows them."""
        return await self.get("/v1/unknown-calls", query)

    async def events(self, thread: str, **query: str | int | None) -> JsonObject:
        """Return a page of records: `events`, `next_after`, `end`."""
        return await self.get(f"/v1/threads/{quote(thread, safe='')}/events", query)

    async def get(self, path: str, query: Query | None = None) -> JsonObject:
        """Return any other resource of the API. Raises RefusedError, UnreachableError."""
        given = {name: value for name, value in (query or {}).items() if value is not None}
        url = f"{self._base}{path}?{urlencode(given)}" if given else self._base + path
        return await self._ask("GET", url, [(b"accept", b"application/json")], b"", is_repeatable=True)

    # Following

    async def follow(
        self, thread: str, after: int = 0, *, until_turn_end: bool = False
    ) -> AsyncGenerator[Fact | Live, None]:
        """Yield the thread's records with seq > after, then those that come: each seq once, in order, whatever happens
        to the connection. `Live` items pass between them. Close the generator (`contextlib.aclosing`) or read it to its
        end. With `until_turn_end` it ends after the next turn.ended that took effect, otherwise never. Raises
        RefusedError, UnreachableError.
        """
        path = f"{self._base}/v1/threads/{quote(thread, safe='')}/events"
        until = "&until=turn_end" if until_turn_end else ""
        patience = _Patience(self._limits, self._loop)
        while True:
            try:
                async with aclosing(self._stream(f"{path}?after={after}{until}")) as items:
                    async for item in items:
                        if isinstance(item, Cut):
                            break
                        patience.reset()
                        if isinstance(item, Live):
                            yield item
                            continue
                        if item.seq <= after:
                            continue
                        after = _next_seq(item, after)
                        yield item
                        if until_turn_end and item.kind == "turn.ended" and item.applied:
                            return
                error: Exception | None = None
            except (httpx2.TransportError, StreamError, _BusyError) as failed:
                error = failed
            await patience.wait(error, f"the events of {thread}")

    async def _stream(self, url: str) -> AsyncGenerator[StreamItem, None]:
        request = self._request("GET", url, [(b"accept", b"text/event-stream")], b"", self._stream_timeouts)
        response = await _send(self._stream_transport, request)
        try:
            if response.status_code != 200:
                self._refuse(response, await response.aread())
            parser = SseParser()
            async for chunk in response.aiter_raw():
                for item in parser.feed(chunk):
                    yield item
        finally:
            await response.aclose()

    # Requests

    async def _ask(
        self, method: str, url: str, headers: list[tuple[bytes, bytes]], content: bytes, *, is_repeatable: bool
    ) -> JsonObject:
        patience = _Patience(self._limits, self._loop)
        while True:
            try:
                request = self._request(method, url, headers, content, self._answer_timeouts)
                response = await _send(self._transport, request)
                try:
                    body = await response.aread()
                finally:
                    await response.aclose()
                if response.status_code < 300:
                    return cast("JsonObject", orjson.loads(body)) if body else {}
                self._refuse(response, body)
            except (httpx2.TransportError, _BusyError) as error:
                if not is_repeatable and not _cannot_have_arrived(error):
                    raise UnreachableError(f"{method} {url}: {error!r}. It may have arrived.") from error
                await patience.wait(error, f"{method} {url}")

    def _request(
        self,
        method: str,
        url: str,
        headers: list[tuple[bytes, bytes]],
        content: bytes,
        timeouts: Mapping[str, Mapping[str, float]],
    ) -> httpx2.Request:
        return httpx2.Request(method, url, headers=[*self._headers, *headers], content=content, extensions=timeouts)

    def _refuse(self, response: httpx2.Response, body: bytes) -> None:
        if response.status_code in RETRIED_STATUSES:
            raise _BusyError(response.status_code, body, response.headers.get("retry-after"))
        raise RefusedError(response.status_code, _problem(body))


class _BusyError(Exception):
    """The service cannot answer now. `did_nothing` says whether the command is known not to have been stored."""

    def __init__(self, status: int, body: bytes, retry_after: str | None) -> None:
        super().__init__(f"{status}: {_shown(body)}")
        self.did_nothing = status == 429 or _name(_problem(body)) not in {"", *MAY_BE_DONE}
        self.retry_after_seconds = int(retry_after) if retry_after is not None and retry_after.isdigit() else 0


class _Patience:
    """How long one thing is tried again, and with which pauses."""

    def __init__(self, limits: ClientLimits, loop: asyncio.AbstractEventLoop) -> None:
        self._limits = limits
        self._loop = loop
        self._failures = 0
        self._give_up_at = 0.0

    def reset(self) -> None:
        """Forget earlier failures: something came, so the next trouble is a new one."""
        self._failures = 0

    async def wait(self, error: Exception | None, what: str) -> None:
        """Sleep until the next try. Raises UnreachableError where it has been tried for long enough."""
        limits = self._limits
        now = self._loop.time()
        if self._failures == 0:
            self._give_up_at = now + limits.give_up_seconds
        elif now > self._give_up_at:
            reason = "the stream was ended" if error is None else str(error) or type(error).__name__
            raise UnreachableError(f"{what} cannot be had: {reason}") from error
        self._failures += 1
        seconds = backoff_seconds(self._failures, limits.backoff_seconds_min, limits.backoff_seconds_max)
        if isinstance(error, _BusyError):
            seconds = max(seconds, min(error.retry_after_seconds, limits.retry_after_seconds_max))
        await asyncio.sleep(seconds)


async def _send(transport: httpx2.AsyncBaseTransport, request: httpx2.Request) -> httpx2.Response:
    """Send the request. Raises httpx2.TransportError, after which it may be sent again, and ClientError if it can never
    be sent, because it is not HTTP. That error does not have a header's value, which may be the API key.
    """
    try:
        return await transport.handle_async_request(request)
    except httpx2.UnsupportedProtocol:
        raise ClientError("the address of the service must begin with http:// or https://") from None
    except httpx2.LocalProtocolError:
        detail = "its address, or a header such as the API key, is not valid in HTTP"
        raise ClientError(f"the request cannot be sent: {detail}") from None


def _tls(base_url: str) -> ssl.SSLContext:
    """Return a context with the system's certificates where the address needs one; loading them takes 60 ms."""
    return httpx2.create_ssl_context() if base_url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _cannot_have_arrived(error: Exception) -> bool:
    """Return whether the command is certainly not in the log, so that even one without a key may be sent again."""
    if isinstance(error, _BusyError):
        return error.did_nothing
    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def _problem(body: bytes) -> JsonObject:
    """Return the problem in an answer. What is not one of the service's, such as a proxy's page, is shown as it is."""
    try:
        problem = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {"detail": _shown(body)} if body else {}
    return problem if isinstance(problem, dict) else {}


def _name(problem: JsonObject) -> str:
    return str(problem.get("type", "")).rpartition("/")[2]


def _shown(body: bytes) -> str:
    return body[:ANSWER_BYTES_SHOWN].decode("utf-8", "replace")


def _call_path(thread: str, call: str) -> str:
    return f"/v1/threads/{quote(thread, safe='')}/tool-calls/{quote(call, safe='')}"


def _next_seq(fact: Fact, after: int) -> int:
    """Return the fact's seq. Raises StreamError where one is missing: the client comes back with its cursor."""
    if fact.seq != after + 1:
        raise StreamError(f"seq {fact.seq} came after {after}")
    return fact.seq


def _timeouts(connect_seconds: float, read_seconds: float) -> dict[str, dict[str, float]]:
    timeouts = {"connect": connect_seconds, "read": read_seconds, "write": read_seconds, "pool": connect_seconds}
    return {"timeout": timeouts}


__all__ = [
    "Accepted",
    "ClientError",
    "ClientLimits",
    "DecisionScope",
    "Fact",
    "JsonObject",
    "JsonValue",
    "Live",
    "RefusedError",
    "Resolution",
    "ThreadlogClient",
    "UnreachableError",
]
