"""`threadlog services run NAME`: one service, in this process."""

import sys
from enum import StrEnum
from importlib import import_module
from typing import Annotated, Final

import typer

app = typer.Typer(no_args_is_help=True, help="The services.")


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
"""Of those whose module has another name."""


@app.command("run")
def run(name: Annotated[Service, typer.Argument(help="Which one.")]) -> None:
    """Run a service until it is told to stop. Settings come from the environment, see .env.example."""
    module = import_module(MODULES.get(name, f"services.{name.value}.__main__"))
    sys.exit(module.main())


@app.command("list")
def show_all() -> None:
    """Name the services."""
    for service in Service:
        print(service.value)
