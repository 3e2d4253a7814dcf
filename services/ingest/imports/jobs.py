"""Import jobs: what was asked for is kept in Postgres until some worker has done it.

A worker takes a job with a lease and renews it. If the worker dies, the lease runs out and another worker takes the
job. The outcome of a file is written once the file is wholly in the log, so the next worker begins with the first file
that is not. A file that was in the middle is imported again: its records have derived ids, and the fold counts them
once.

Only one job of a tenant is worked on at a time, so that no two workers import the same session.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, cast
from uuid import UUID

import asyncpg
import orjson
from pydantic import JsonValue

from schemas.ids import TenantId
from services.chassis.postgres.connections import AWAY
from services.chassis.postgres.sql_files import SqlFiles
from services.importer.model import Tool
from services.ingest.commands.views import format_moment
from services.ingest.database import Database
from services.ingest.http.auth import Principal
from services.ingest.http.problems import VIEWS_UNAVAILABLE, Problem, ProblemError

FILES_MAX: Final = 2_000
"""Files of one import. `threadlog import` makes several imports of more, so that each is done within minutes."""
SQL: Final = SqlFiles(Path(__file__).with_name("sql"))


class WantedFile(NamedTuple):
    """A file of a request: its path in the session folder, and the artifact with its bytes."""

    path: str
    sha256: str
    size: int
    companion: bool
    """Whether the file only belongs to a session, such as a tool's output, and is no session itself."""


class Job(NamedTuple):
    """An import that this worker has taken."""

    id: str
    tenant: TenantId
    tool: Tool
    tries: int
    """Times that it was taken, this time included."""


class JobFile(NamedTuple):
    """A file of an import, and whether it is done."""

    import_id: str
    number: int
    path: str
    sha256: str
    size: int
    companion: bool = False
    is_done: bool = False
    sessions: tuple[str, ...] = ()
    """Sessions of a file that is done; their threads exist."""


class LeaseLostError(Exception):
    """Another worker has the job. This one must write nothing more."""


class Jobs:
    """The table of imports, as workers use it. All methods raise what asyncpg raises."""

    def __init__(self, pool: asyncpg.Pool, worker: str, lease_seconds: float) -> None:
        self._pool = pool
        self._worker = worker
        self._lease_seconds = lease_seconds

    async def waiting(self) -> int:
        """Return how many imports a worker could take now."""
        return cast("int", await self._pool.fetchval(SQL["unfinished_imports"]))

    async def claim(self) -> Job | None:
        """Take the oldest import that nobody works on; None if there is none."""
        row = await self._pool.fetchrow(SQL["claim_import"], self._worker, self._lease_seconds)
        return Job(row["id"], TenantId(row["tenant"]), row["tool"], row["tries"]) if row is not None else None

    async def renew(self, job: Job) -> None:
        """Renew the lease. Raises LeaseLostError."""
        if not await self._pool.fetchval(SQL["renew_import"], job.id, self._worker, self._lease_seconds):
            raise LeaseLostError

    async def end(self, job: Job, status: str, problem: str | None = None) -> None:
        """Give the job back with its new status. `waiting` makes it free for any worker at once."""
        await self._pool.fetchval(SQL["end_import"], job.id, self._worker, status, problem)

    async def files(self, job: Job) -> list[JobFile]:
        """Return the job's files in order."""
        rows = await self._pool.fetch(SQL["files_of_import"], job.tenant, job.id)
        return [
            JobFile(
                *(job.id, row["number"], row["path"], row["sha256"], row["size"], row["companion"], row["is_done"]),
                tuple(row["sessions"]),
            )
            for row in rows
        ]

    async def waiting_files(self, job: Job, sessions: Sequence[str], files_max: int) -> list[JobFile]:
        """Return files of the tenant's earlier imports that lacked one of these sessions."""
        rows = await self._pool.fetch(SQL["waiting_files"], job.tenant, list(sessions), job.id, files_max)
        return [JobFile(row["import"], row["number"], row["path"], row["sha256"], row["size"]) for row in rows]

    async def report(
        self,
        job: Job,
        file: JobFile,
        report: dict[str, JsonValue],
        outcome: list[JsonValue],
        waits_for: str | None,
    ) -> None:
        """Write what became of a file, together with a check of the lease. Raises LeaseLostError.

        `file` may belong to an earlier import that waited for a session of this one.
        """
        found = await self._pool.fetchval(
            SQL["put_report"],
            job.tenant,
            file.import_id,
            file.number,
            orjson.dumps(report),
            orjson.dumps(outcome),
            waits_for,
            job.id,
            self._worker,
        )
        if found is None:
            raise LeaseLostError


class Imports:
    """The table of imports, as the API uses it. All methods raise ProblemError (views-unavailable)."""

    def __init__(self, pool: asyncpg.Pool, database: Database, sql: Mapping[str, str]) -> None:
        self._pool = pool
        self._database = database
        self._sql = sql
        self.wanted = asyncio.Event()
        """The supervisor waits for this; it is set whenever there may be something to work on."""

    async def create(
        self, import_id: UUID, principal: Principal, tool: Tool, request_sha256: str, files: Sequence[WantedFile]
    ) -> bool:
        """Record an import. Returns whether it is there with this very request, recorded now or before."""
        tenant = principal.tenant
        columns = [list(column) for column in zip(*files, strict=True)]
        sessions = sum(not file.companion for file in files)
        try:
            await self._pool.fetch(
                SQL["insert_import"],
                *(import_id, tenant, tool, principal.subject, request_sha256, sessions),
                list(range(len(files))),
                *columns,
            )
            there = await self._pool.fetchval(SQL["request_of_import"], tenant, import_id)
        except AWAY as error:
            raise ProblemError(
                Problem(
                    VIEWS_UNAVAILABLE,
                    f"The import cannot be recorded: the database failed with {type(error).__name__}. Try again.",
                )
            ) from error
        self.wanted.set()
        return cast("str | None", there) == request_sha256

    async def read(self, tenant: str, import_id: UUID) -> bytes | None:
        """Return the import as JSON; None if the tenant has no such import."""
        rows = await self._database.fetch(tenant, self._sql["import"], tenant, import_id)
        if not rows:
            return None
        found, finished_at = dict(rows[0]), rows[0]["finished_at"]
        found["created_at"] = format_moment(found["created_at"])
        found["finished_at"] = None if finished_at is None else format_moment(finished_at)
        return orjson.dumps(found)

    async def files(self, tenant: str, import_id: UUID, after: int, files_max: int) -> bytes:
        """Return a page of the import's files that are done, as JSON."""
        query = self._sql["import_files"]
        rows = await self._database.fetch(tenant, query, tenant, import_id, after, files_max)
        files = [
            {
                "number": row["number"],
                "path": row["path"],
                "waits_for": row["waits_for"],
                "report": orjson.Fragment(row["report"]),
                "threads": orjson.Fragment(row["outcome"] or b"[]"),
            }
            for row in rows
        ]
        return orjson.dumps({"files": files, "next": rows[-1]["number"] if len(rows) == files_max else None})
