"""The whole system on this machine: the four services as processes of their own, on a given Kafka and Postgres."""

import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

from services.chassis.settings import Settings
from services.cli.database import migrate_all
from services.cli.local.embedded import free_port
from services.cli.local.supervisor import Supervisor
from services.cli.topics import apply_topics
from services.client.client import ThreadlogClient


@dataclass(frozen=True, slots=True)
class System:
    supervisor: Supervisor
    settings: Settings
    environment: Mapping[str, str]
    url: str
    folder: Path

    def client(
        self, *, tenant: str = "dev", keyed: bool = True, transport: httpx2.AsyncBaseTransport | None = None
    ) -> ThreadlogClient:
        return ThreadlogClient(self.url, tenant=tenant, keyed=keyed, transport=transport)

    def write_tools(self, text: str) -> None:
        """The tools file, read when the tool-executor starts."""
        (self.folder / "tools.yaml").write_text(text)


@contextlib.asynccontextmanager
async def system(
    folder: Path, *, kafka: str, postgres: str, script: str, tools: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[System]:
    """Topics, tables and services; ready. `script` is what the model `scripted` plays, `tools` the tools file."""
    (folder / "script.yaml").write_text(script)
    port = free_port()
    own = {
        "THREADLOG_KAFKA_BOOTSTRAP_SERVERS": kafka,
        "THREADLOG_POSTGRES_DSN": postgres,
        "THREADLOG_INGEST_AUTH": "dev",
        "THREADLOG_INGEST_PORT": str(port),
        "THREADLOG_RUNTIME_SCRIPT": str(folder / "script.yaml"),
        "THREADLOG_EXECUTOR_TOOLS_FILE": str(folder / "tools.yaml"),
        "THREADLOG_EXECUTOR_WORKSPACE_ROOT": str(folder / "workspaces"),
        "THREADLOG_ARTIFACTS_URL": (folder / "artifacts").resolve().as_uri(),
        **(environment or {}),
    }
    settings = Settings(kafka_bootstrap_servers=kafka, postgres_dsn=postgres)
    await apply_topics(settings)
    await migrate_all(settings)
    async with Supervisor({**os.environ, **own}, folder / "logs") as supervisor:
        found = System(supervisor, settings, own, f"http://127.0.0.1:{port}", folder)
        found.write_tools(tools)
        await supervisor.start_all()
        yield found
