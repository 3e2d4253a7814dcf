"""Holds what the API answers to what its operations declare, in every test that asks the application."""

import re
from collections.abc import Iterable

import pydantic
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.ingest.app import GROUPS
from services.ingest.http.answers import JSON, ProblemAnswer
from services.ingest.http.operation import Operation, operations_of
from services.ingest.http.problems import ALWAYS, MEDIA_TYPE


class DeclaredAnswers:
    """An application whose JSON answers are checked. One that its operation does not declare becomes a 500 that says
    what is wrong with it, so the test that asked fails on its status.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._operations = [
            (re.compile(re.sub(r"{\w+}", "[^/]+", declared.path)), declared)
            for group in GROUPS
            for declared in operations_of(group)
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = self._find(scope)
        if declared is None:
            await self._app(scope, receive, send)
            return
        kept: list[Message] = []

        async def checked(message: Message) -> None:
            if message["type"] == "http.response.start" and media_type_of(message) in {JSON, MEDIA_TYPE}:
                kept.append(message)
                return
            if not kept:
                await send(message)
                return
            kept.append(message)
            if message.get("more_body", False):
                return
            start, *parts = kept
            body = b"".join([part.get("body", b"") for part in parts])
            complaint = misfit(declared, start["status"], media_type_of(start), body)
            if complaint is not None:
                answer = PlainTextResponse(f"{declared.name}: {complaint}", 500)
                await answer(scope, receive, send)
                return
            for each in kept:
                await send(each)

        await self._app(scope, receive, checked)

    def _find(self, scope: Scope) -> Operation | None:
        found: Iterable[Operation] = (
            declared
            for path, declared in self._operations
            if declared.method == scope["method"] and path.fullmatch(scope["path"]) is not None
        )
        return next(iter(found), None)


def media_type_of(start: Message) -> str:
    media_type: bytes = dict(start["headers"]).get(b"content-type", b"")
    return media_type.decode("latin-1")


def misfit(declared: Operation, status: int, media_type: str, body: bytes) -> str | None:
    """Return what is wrong with a JSON answer of an operation; None if the operation declares it."""
    if media_type == MEDIA_TYPE:
        slug = ProblemAnswer.model_validate_json(body).type.rpartition("/")[2]
        declared_slugs = {each.slug for each in (*ALWAYS, *declared.problems)}
        return None if slug in declared_slugs else f"the problem {slug} is not declared"
    if status not in declared.statuses or declared.answer is None:
        return f"an answer {status} of JSON is not declared"
    try:
        declared.answer.model_validate_json(body)
    except pydantic.ValidationError as error:
        return str(error)
    return None
