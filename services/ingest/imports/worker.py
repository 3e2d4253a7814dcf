"""The process that works on imports: `python -m services.ingest.imports.worker`, a child of ingest.

It ends when there is nothing to do, when its parent ends (its standard input is then at its end), or when it is killed.
Whatever it was working on is continued by the next one.

Session files may be hostile or broken. What is wrong with one file becomes its report, and the others go on. Errors of
Kafka, Postgres or the artifact store interrupt the whole job, which is tried again.
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import structlog

from schemas.config import Config
from schemas.errors import ThreadlogError
from schemas.events import Artifact
from schemas.topics import RECORD_BYTES_MAX, THREAD_EVENTS
from services.chassis.artifacts.object_store import open_artifacts
from services.chassis.artifacts.store import ArtifactMissingError, ArtifactStore
from services.chassis.clock import draw_id
from services.chassis.kafka.kafka_log import KafkaLog
from services.chassis.log_partitions import check_partitions
from services.chassis.postgres.connections import AWAY, open_pool
from services.chassis.postgres.tenancy import TenantPool
from services.chassis.process.telemetry import configure_logging
from services.chassis.threads.postgres_states import TenantStates
from services.importer.import_file import Importer, Outcome
from services.importer.report import FileReport
from services.importer.sessions import Reading, ReadLimits, Scan, Scanned, reading, scan, scan_file
from services.importer.source_files import SessionFile
from services.importer.store import ImportStore, PostgresImportStore
from services.importer.threads.events import EventLimits
from services.ingest.commands.views import POLL_SECONDS
from services.ingest.imports.jobs import FILES_MAX, Job, JobFile, Jobs, LeaseLostError
from services.ingest.settings import IngestSettings

MEDIA_TYPE = "application/x-ndjson"
"""Media type of a session file, whose lines are JSON."""
TRIES_MAX: Final = 20
"""Times that an import is taken up before it is given up with its last error. An outage of a minute passes within them.
"""
AGAIN_SECONDS: Final = 5.0
"""The pause before an import is tried again that was interrupted by a temporary error."""
VIEWS_WAIT_SECONDS: Final = 60.0
"""How long an import waits until the views have passed the end of the log. It writes faster than the views follow."""
LINE_BYTES_MAX: Final = 64 * 1_048_576
"""Bytes of one line of a session file. A longer line counts as a bad one: it would have to be held in memory whole."""
NICENESS: Final = 10
"""How far this process stands back behind others of the machine: requests come first."""
QUERY_SECONDS_FACTOR: Final = 6
"""An import's queries are larger than those of a request, and nobody waits for their answer."""
logger = structlog.get_logger()


class Worker:
    """Takes jobs one after the other until there is none."""

    def __init__(
        self, settings: IngestSettings, jobs: Jobs, store: ImportStore, artifacts: ArtifactStore, config: Config
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._store = store
        self._artifacts = artifacts
        self._config = config

    async def run(self) -> int:
        """Work until no job is left. Returns how many jobs were taken."""
        count = 0
        while (job := await self._jobs.claim()) is not None:
            count += 1
            try:
                await self._with_lease(job)
            except LeaseLostError:
                logger.warning("import_lease_lost", job=job.id)
        return count

    async def _with_lease(self, job: Job) -> None:
        """Work on the job and renew its lease meanwhile. Raises LeaseLostError, which ends the work at once."""
        work = asyncio.ensure_future(self._work(job))
        try:
            while True:
                done, _ = await asyncio.wait({work}, timeout=self._settings.import_lease_seconds / 3)
                if done:
                    break
                await self._jobs.renew(job)
            await work
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await work

    async def _work(self, job: Job) -> None:
        """Work on the job, and write how it ended."""
        logger.info("import_taken", job=job.id, tenant=job.tenant, tool=job.tool, tries=job.tries)
        if job.tries > TRIES_MAX:
            # Each worker that took it died without a word, perhaps of a file that needs too much memory.
            problem = f"its worker died {TRIES_MAX} times; the files that are done stay"
            await self._jobs.end(job, "failed", problem)
            logger.warning("import_failed", job=job.id, error=problem)
            return
        try:
            with tempfile.TemporaryDirectory(prefix="threadlog-import-") as folder:
                await _JobRun(self, job, Path(folder)).run()
        except LeaseLostError:
            raise
        except (ThreadlogError, *AWAY) as error:
            if job.tries >= TRIES_MAX:
                await self._jobs.end(job, "failed", f"{error}"[:500])
                logger.warning("import_failed", job=job.id, error=str(error))
                return
            # The job stays with this worker during the pause; free, it would be taken again at once.
            logger.warning("import_interrupted", job=job.id, error=repr(error))
            await asyncio.sleep(AGAIN_SECONDS)
            await self._jobs.end(job, "waiting", f"{error}"[:500])
        else:
            await self._jobs.end(job, "done")
            logger.info("import_finished", job=job.id)

    @property
    def settings(self) -> IngestSettings:
        return self._settings

    @property
    def jobs(self) -> Jobs:
        return self._jobs

    @property
    def artifacts(self) -> ArtifactStore:
        return self._artifacts

    def importer(self, job: Job) -> Importer:
        """Return what imports sessions for the job's tenant."""
        limits = EventLimits(
            text_bytes_max=self._settings.ingest_input_bytes_max,
            result_bytes_max=self._settings.ingest_result_bytes_max,
            record_bytes_max=RECORD_BYTES_MAX,
        )
        return Importer(job.tenant, self._store, self._artifacts, self._config, limits)


class _Waiting(NamedTuple):
    """A file that is not imported yet, because the session of its parent is missing."""

    scanned: Scanned
    waits_for: str
    """The missing session."""
    sessions: tuple[str, ...]
    """Sessions of the file, as far as it was read."""


class _JobRun:
    """One job: its files are fetched into a folder, then imported, parents before their forks and children."""

    def __init__(self, worker: Worker, job: Job, folder: Path) -> None:
        self._worker = worker
        self._job = job
        self._folder = folder
        self._importer = worker.importer(job)
        settings = worker.settings
        self._limits = ReadLimits(file_bytes_max=settings.import_file_bytes_max, line_bytes_max=LINE_BYTES_MAX)

    async def run(self) -> None:
        """Import what is not done yet, then earlier imports' files that waited for it."""
        files = await self._worker.jobs.files(self._job)
        found = await self._fetch(files)
        by_name = {file.path: file for file in files}
        # Files may also wait for what an earlier worker of this job imported.
        self._importer.imported.extend([name for file in files for name in file.sessions])
        await self._rounds(found, by_name)
        await self._heal()

    async def _fetch(self, files: Sequence[JobFile]) -> Scan:
        """Fetch all files, done ones too: a file may need another one to be read."""
        sessions: list[SessionFile] = []
        for file in files:
            path = place_of(self._folder, file.path)
            try:
                await self._download(file, path)
            except ArtifactMissingError:
                if not file.companion and not file.is_done:
                    await self._missing(file)
                continue
            if not file.companion:
                sessions.append(SessionFile(path, file.path, path.stat().st_size))
        return await asyncio.to_thread(scan, sessions, self._job.tool)

    async def _download(self, file: JobFile, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pieces = await self._worker.artifacts.get(self._job.tenant, file.sha256)
        with path.open("wb") as opened:
            async for piece in pieces:
                opened.write(piece)

    async def _missing(self, file: JobFile) -> None:
        """Report a file whose bytes are not in the artifact store."""
        report = FileReport(file.path, problem="its bytes are not in the artifact store; upload them and import again")
        await self._worker.jobs.report(self._job, file, report.to_json(), [], None)

    async def _rounds(self, found: Scan, files: dict[str, JobFile]) -> None:
        """Import the files, in rounds, until none is left.

        The order of sessions is known only while reading them. A file whose parent is missing waits for the next round.
        A round that imports nothing shows that the rest waits for something that will not come; some of it is then
        imported without its parent.
        """
        todo = [scanned for scanned in found.files if not files[scanned.file.name].is_done]
        while todo:
            waiting: list[_Waiting] = []
            for scanned in todo:
                waits = await self._import(scanned, found, files[scanned.file.name], last_try=False)
                if waits is not None:
                    waiting.append(waits)
            if len(waiting) == len(todo):
                waiting = await self._for_the_last_time(waiting, found, files)
            todo = [each.scanned for each in waiting]

    async def _for_the_last_time(
        self, waiting: "Sequence[_Waiting]", found: Scan, files: dict[str, JobFile]
    ) -> "list[_Waiting]":
        """Import the files whose parents are in no other file or, if they all wait for each other, the first of them.
        Returns the rest.
        """
        names = {name for each in waiting for name in each.sessions}
        last = [each for each in waiting if each.waits_for not in names] or [waiting[0]]
        for each in last:
            await self._import(each.scanned, found, files[each.scanned.file.name], last_try=True)
        return [each for each in waiting if each not in last]

    async def _import(self, scanned: Scanned, found: Scan, file: JobFile, *, last_try: bool) -> "_Waiting | None":
        """Import a file. Returns what it waits for if its parent may still come."""
        raw = Artifact(
            sha256=file.sha256, size=file.size, media_type=MEDIA_TYPE, name=PurePosixPath(file.path).name[:128]
        )

        def read() -> Reading:
            return reading(scanned, self._job.tool, found, self._limits)

        try:
            read_to_end, outcome = await self._importer.run(read, raw, last_try=last_try)
        except (ThreadlogError, *AWAY):
            raise
        except Exception as error:
            # The file may be hostile. What is wrong with one must not stop the others.
            logger.exception("import_file_failed", job=self._job.id, file=file.path)
            report = FileReport(scanned.file.name, problem=f"it could not be imported: {type(error).__name__}"[:300])
            await self._worker.jobs.report(self._job, file, report.to_json(), [], None)
            return None
        if outcome.waits_for is not None and not last_try:
            sessions = tuple([thread.source_id for thread in read_to_end.report.threads])
            return _Waiting(scanned, outcome.waits_for, sessions)
        await self._report(file, read_to_end, outcome)
        return None

    async def _report(self, file: JobFile, read: Reading, outcome: Outcome) -> None:
        """Write what became of a file."""
        threads = [thread.to_json() for thread in outcome.threads]
        await self._worker.jobs.report(self._job, file, read.report.to_json(), [*threads], outcome.waits_for)

    async def _heal(self) -> None:
        """Import forks of earlier imports again that lacked what this import brought.

        What they bring may complete others, so this repeats, a bounded number of times.
        """
        seen: set[str] = set()
        for _ in range(TRIES_MAX):
            came = [name for name in self._importer.imported if name not in seen]
            if not came:
                return
            seen.update(came)
            for file in await self._worker.jobs.waiting_files(self._job, came, FILES_MAX):
                path = place_of(self._folder / f"{file.import_id}-{file.number}", file.path)
                with suppress(ArtifactMissingError):
                    await self._download(file, path)
                    scanned = scan_file(SessionFile(path, file.path, path.stat().st_size))
                    await self._import(scanned, Scan([scanned]), file, last_try=True)


def place_of(folder: Path, name: str) -> Path:
    """Return where a file of the job is put. Names that lead out of the folder were refused; here their parts are
    dropped.
    """
    parts = [part for part in PurePosixPath(name).parts if part not in {"", ".", "..", "/"}]
    return folder.joinpath(*parts)


async def work(settings: IngestSettings) -> int:
    """Connect, and work on all jobs. Returns how many there were."""
    if shutil.which("nice") is not None:
        os.nice(NICENESS)
    log = await KafkaLog.open(settings, "ingest-import")
    pool = await open_pool(
        settings.postgres_dsn,
        application_name="threadlog-ingest-import",
        size_min=0,
        size_max=2,
        command_timeout_seconds=settings.ingest_query_timeout_seconds * QUERY_SECONDS_FACTOR,
        role=settings.ingest_postgres_role,
    )
    try:
        await check_partitions(settings, log)
        tenants = TenantPool(pool, 2)
        store = PostgresImportStore(
            log,
            tenants,
            TenantStates(tenants, settings.ingest_query_timeout_seconds),
            partitions=await log.partition_count(THREAD_EVENTS.name),
            wait_seconds=VIEWS_WAIT_SECONDS,
            poll_seconds=POLL_SECONDS,
            query_seconds=settings.ingest_query_timeout_seconds * QUERY_SECONDS_FACTOR,
        )
        config = Config(model=settings.ingest_default_model, instructions=settings.ingest_default_instructions)
        jobs = Jobs(pool, f"{settings.instance}-{draw_id()[:8]}", settings.import_lease_seconds)
        return await Worker(settings, jobs, store, open_artifacts(settings), config).run()
    finally:
        await pool.close()
        await log.close()


async def _until_parent_ends() -> None:
    """Wait for the end of standard input, which the parent never writes to."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.read()


async def _main(settings: IngestSettings) -> int:
    working = asyncio.ensure_future(work(settings))
    parent = asyncio.ensure_future(_until_parent_ends())
    await asyncio.wait({working, parent}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        # Nothing is lost: the job is continued by another worker. Waiting for threads would only delay the end.
        os._exit(0)
    parent.cancel()
    await working
    return 0


def main() -> int:
    settings = IngestSettings()
    configure_logging(settings.log_format, "ingest", f"{settings.instance}-import", settings.log_level)
    try:
        return asyncio.run(_main(settings))
    except (ThreadlogError, *AWAY) as error:
        logger.warning("import_worker_failed", error=repr(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
