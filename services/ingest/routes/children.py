"""Child threads: begin one for a person or a backend, and list those of a thread."""

# ruff: noqa: FAST003 - commands read their parameters by hand, see parameters.py

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from services.chassis.clock import draw_id
from services.ingest.commands.accepting import children as accept_children
from services.ingest.commands.forks import ForkAt
from services.ingest.dependencies import authorized, dependencies
from services.ingest.http import openapi
from services.ingest.http.answers import CommandAnswer
from services.ingest.http.problems import CHILD_TOO_DEEP, NOT_FORKABLE, STATE_OUT_OF_REACH, THREAD_CLOSING
from services.ingest.http.requests import CreateChild
from services.ingest.routes.parameters import idempotency_key, read_body, run, sizes_of_named, thread_key
from services.ingest.routes.threads import NAMING_ARTIFACTS, TO_A_THREAD

router = APIRouter(tags=["threads"])

BEGINNING = """
A thread below this one, with the configuration that is in force here, patched by `config`. It begins empty: unlike a
fork, it inherits nothing that was said. No call waits for its end; children that a model begins by the tool
`spawn_thread` answer for their call.
"""


@router.post(
    "/v1/threads/{thread}/children",
    summary="Create a child thread",
    description=BEGINNING,
    responses=openapi.answers(
        CommandAnswer,
        (200, 202),
        (*TO_A_THREAD, *NAMING_ARTIFACTS, NOT_FORKABLE, CHILD_TOO_DEEP, THREAD_CLOSING, STATE_OUT_OF_REACH),
    ),
    openapi_extra=openapi.command(CreateChild, required=False),
)
async def create_child(request: Request) -> Response:
    principal = await authorized(request, "threads:write")
    sent = idempotency_key(request)
    parent = thread_key(principal.tenant, request.path_params["thread"])
    command = accept_children.child_command(principal, parent, sent or draw_id(), keyed=sent is not None)
    wanted = await read_body(request, CreateChild, optional=True)
    found = dependencies(request)
    point = await found.forks.point(parent, command, ForkAt())
    sizes = await sizes_of_named(request, principal.tenant, wanted.input, wanted.config)
    accepted = accept_children.create_child(command, wanted, point, found.limits, found.settings.child_depth, sizes)
    return await run(request, accepted)
