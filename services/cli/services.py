"""`threadlog services run NAME` runs one service in this process."""

import sys
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Final

import typer

app = typer.Typer(no_args_is_help=True, help="Run a service, or list them.")


class Service(StrEnum):
    ingest = "ingest"
    runtime = "runtime"
    tool_executor = "tool-executor"
    projector = "projector"
    rollups = "rollups"


MODULES: Final = {
    Service.tool_executor: "services.tool_executor.__main__",
    Service.rollups: "services.projector.windows.rollups",
}
"""Modules of the services that are not named after their package."""


@app.command("run")
def run(
    name: Annotated[
        Service, typer.Argument(help="Service to run: ingest, runtime, tool-executor, projector or rollups.")
    ],
) -> None:
    """Run a service until it receives SIGTERM. Settings come from the environment; .env.example lists them."""
    module = import_module(MODULES.get(name, f"services.{name.value}.__main__"))
    sys.exit(module.main())


@app.command("list")
def show_all() -> None:
    """List the names of the services."""
    for service in Service:
        print(service.value)
