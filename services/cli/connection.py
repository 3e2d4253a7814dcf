"""Options of every command that talks to the service: where it is, and who asks."""

from typing import Annotated

import typer

from services.client.client import ThreadlogClient

Url = Annotated[str, typer.Option("--url", envvar="THREADLOG_URL", help="Address of the ingest service.")]
Token = Annotated[
    str | None, typer.Option("--token", envvar="THREADLOG_TOKEN", help="API key. Not needed in development mode.")
]
Tenant = Annotated[str, typer.Option("--tenant", envvar="THREADLOG_TENANT", help="Tenant, in development mode.")]

URL = "http://127.0.0.1:8080"
TENANT = "dev"


def connect(url: str, token: str | None, tenant: str) -> ThreadlogClient:
    return ThreadlogClient(url, token=token, tenant=tenant)
