"""Imports of recorded sessions: requested with files that were uploaded as artifacts, worked on beside the requests."""

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar
from uuid import UUID

from pydantic import Field
from starlette.responses import Response

from schemas.canonical import canonical_json
from schemas.ids import derive
from services.chassis.clock import draw_id
from services.ingest.http.answers import ImportAnswer, ImportFilePage, json_answer
from services.ingest.http.auth import Principal
from services.ingest.http.operation import Parameters, operation
from services.ingest.http.problems import (
    IDEMPOTENCY_CONFLICT,
    NOT_FOUND,
    OF_BODIES,
    OF_READS,
    TOO_LARGE,
    Problem,
    ProblemError,
)
from services.ingest.http.requests import CreateImport
from services.ingest.imports.jobs import Imports, WantedFile
from services.ingest.routes.parameters import ImportPart, KeyParameter, Limit, PageSizes, no_such_import


class ImportFilesParameters(Parameters):
    after: Annotated[int, Field(ge=-1, le=2**31 - 1)] = -1
    """Number of the last file that you have; -1 before the first."""
    limit: Limit = None


@dataclass(frozen=True, slots=True)
class ImportRoutes:
    """Imports of recorded sessions. They are only requested here; `imports.worker` does the work."""

    tag: ClassVar = "imports"

    imports: Imports
    pages: PageSizes
    files_max: int
    """Files of one import."""

    @operation(
        "POST",
        "/v1/imports",
        "threads:write",
        summary="Import recorded sessions",
        answer=ImportAnswer,
        statuses=(202,),
        problems=(*OF_BODIES, IDEMPOTENCY_CONFLICT, *OF_READS),
    )
    async def create_import(self, caller: Principal, parameters: KeyParameter, body: CreateImport) -> Response:
        """Import sessions of Claude Code or Codex. The files are named by the hashes under which they were uploaded as
        artifacts. Each session is added to a thread of its own. Importing the same sessions again, or longer snapshots
        of them, adds only what is new.
        """
        if len(body.files) > self.files_max:
            detail = f"The import has {len(body.files)} files; the limit is {self.files_max}. Make several imports."
            raise ProblemError(Problem(TOO_LARGE, detail))
        # With a key the id is the same whenever the request is sent again, so it finds the import that it has made.
        sent = parameters.key if parameters.key is not None else draw_id()
        import_id = UUID(derive("import", caller.tenant, caller.subject, sent))
        files = [WantedFile(file.path, file.sha256, file.size, file.companion) for file in body.files]
        # The key stands for this request only: another one with the same key is refused.
        request_sha256 = hashlib.sha256(canonical_json(body.model_dump(mode="json"))).hexdigest()
        if not await self.imports.create(import_id, caller, body.tool, request_sha256, files):
            raise ProblemError(Problem(IDEMPOTENCY_CONFLICT, "Another import was requested with this Idempotency-Key."))
        return json_answer(await self._import(caller, import_id), 202)

    @operation(
        "GET",
        "/v1/imports/{import}",
        "threads:read",
        summary="Read the progress of an import",
        answer=ImportAnswer,
        problems=(NOT_FOUND, *OF_READS),
    )
    async def get_import(self, caller: Principal, import_id: ImportPart) -> Response:
        """`done` counts the files that are finished. `problem` says why the import failed or was interrupted."""
        return json_answer(await self._import(caller, import_id))

    @operation(
        "GET",
        "/v1/imports/{import}/files",
        "threads:read",
        summary="Read what was found in an import's files",
        answer=ImportFilePage,
        problems=(NOT_FOUND, *OF_READS),
    )
    async def list_import_files(
        self, caller: Principal, import_id: ImportPart, parameters: ImportFilesParameters
    ) -> Response:
        """The list has the files that are done, in the order of the request. `after` is the number of the last file
        that you have.
        """
        await self._import(caller, import_id)
        limit = self.pages.limit(parameters.limit)
        return json_answer(await self.imports.files(caller.tenant, import_id, parameters.after, limit))

    async def _import(self, caller: Principal, import_id: UUID) -> bytes:
        """Raises ProblemError (not-found)."""
        found = await self.imports.read(caller.tenant, import_id)
        if found is None:
            raise ProblemError(no_such_import())
        return found
