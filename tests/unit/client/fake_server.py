"""A transport whose answers a test writes."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import httpx2
import orjson

Chunk = bytes | Exception
Handler = Callable[[httpx2.Request], "Answer"]


@dataclass
class Answer:
    status: int = 200
    chunks: Sequence[Chunk] = ()
    """What is read of the body; an exception ends it."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeServer(httpx2.AsyncBaseTransport):
    handle: Handler
    requests: list[httpx2.Request] = field(default_factory=list)
    open_bodies: int = 0
    closed: bool = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.handle(request)
        return httpx2.Response(answer.status, headers=answer.headers, stream=_Body(self, answer.chunks))

    async def aclose(self) -> None:
        self.closed = True


class _Body(httpx2.AsyncByteStream):
    def __init__(self, server: FakeServer, chunks: Sequence[Chunk]) -> None:
        self._server = server
        self._chunks = chunks
        server.open_bodies += 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    async def aclose(self) -> None:
        self._server.open_bodies -= 1


def in_turn(*steps: Answer | Exception) -> Handler:
    """These answers, one per request; an exception is a connection that fails."""
    left = list(steps)

    def handle(_request: httpx2.Request) -> Answer:
        step = left.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    return handle


def json_answer(body: object, status: int = 200, **headers: str) -> Answer:
    return Answer(status, [orjson.dumps(body)], {name.replace("_", "-"): value for name, value in headers.items()})


def fact_event(seq: int, kind: str = "thread.described", effect: str = "applied") -> bytes:
    body = orjson.dumps({"seq": seq, "type": kind, "effect": effect, "data": {"n": seq}})
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind.encode(), body)


DELTA = b'event: delta\ndata: {"text":"x"}\n\n'


def cut_event(after: int) -> bytes:
    return b'event: cut\ndata: {"after":%d,"reason":"slow"}\n\n' % after
