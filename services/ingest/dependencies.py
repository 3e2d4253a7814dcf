"""What the routes work with. `app.create_app` puts it on the application, `__main__` makes it."""

from dataclasses import dataclass
from typing import cast

from starlette.requests import Request

from services.chassis.artifacts import ArtifactStore
from services.chassis.clock import Clock
from services.ingest.accept import AcceptLimits
from services.ingest.auth import Authenticator, Principal, Scope, authorize
from services.ingest.commands import Commands
from services.ingest.dead_letters import DeadLetters
from services.ingest.ephemeral import ViewsAndFold
from services.ingest.existence import KnownThreads
from services.ingest.file_histories import Diffs, FileHistories
from services.ingest.forks import Forks
from services.ingest.imports import Imports
from services.ingest.live import Watches
from services.ingest.metrics import IngestMetrics
from services.ingest.ops import Ops
from services.ingest.reads import Reads
from services.ingest.settings import IngestSettings
from services.ingest.state_at import StatesAt
from services.ingest.tools import Tools
from services.ingest.transfers import Transfers
from services.ingest.windows import OpsWindows


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
