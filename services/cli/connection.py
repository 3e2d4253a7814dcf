"""Where the service is, for commands that talk to it."""

from typing import Annotated

import typer

from services.client.client import ThreadlogClient

Url = Annotated[str, typer.Option("--url", envvar="THREADLOG_URL", help="Where the ingest service listens.")]
Token = Annotated[
    str | None, typer.Option("--token", envvar="THREADLOG_TOKEN", help="An API key; without one: development mode.")
]
Tenant = Annotated[str, typer.Option("--tenant", envvar="THREADLOG_TENANT", help="In development mode, who asks.")]

URL = "http://127.0.0.1:8080"
TENANT = "dev"


def connect(url: str, token: str | None, tenant: str) -> ThreadlogClient:
    return ThreadlogClient(url, token=token, tenant=tenant)
