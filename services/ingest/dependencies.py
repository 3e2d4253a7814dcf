"""What the routes work with. `app.create_app` puts it on the application, `__main__` makes it."""

from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from services.chassis.artifacts.store import ArtifactStore
from services.chassis.clock import Clock
from services.ingest.commands.accepting.accept import AcceptLimits
from services.ingest.commands.commands import Commands
from services.ingest.commands.ephemeral import ViewsAndFold
from services.ingest.commands.existence import KnownThreads
from services.ingest.commands.forks import Forks
from services.ingest.commands.tools import Tools
from services.ingest.files.recorded_changes import Diffs, FileHistories
from services.ingest.files.transfers import Transfers
from services.ingest.http.auth import Authenticator, Principal, Scope, authorize
from services.ingest.imports.jobs import Imports
from services.ingest.metrics import IngestMetrics
from services.ingest.operations.dead_letters import DeadLetters
from services.ingest.operations.stuck import Ops
from services.ingest.operations.windows import OpsWindows
from services.ingest.reads.reads import Reads
from services.ingest.reads.state_at import StatesAt
from services.ingest.settings import IngestSettings
from services.ingest.streams.live import Watches


@dataclass(frozen=True, slots=True)
class Dependencies:
    settings: IngestSettings
    limits: AcceptLimits
    clock: Clock
    metrics: IngestMetrics
    authenticator: Authenticator
    known: KnownThreads
    views: ViewsAndFold
    commands: Commands
    reads: Reads
    forks: Forks
    states: StatesAt
    watches: Watches
    ops: Ops
    dead_letters: DeadLetters
    windows: OpsWindows
    tools: Tools
    artifacts: ArtifactStore
    transfers: Transfers
    imports: Imports
    file_histories: FileHistories
    diffs: Diffs


def dependencies(request: Request) -> Dependencies:
    return cast("Dependencies", request.app.state.dependencies)


async def authorized(request: Request, scope: Scope) -> Principal:
    """Who asks, once it is sure that they may. Raises ProblemError."""
    return await authorize(dependencies(request).authenticator, request.headers, scope)
