"""What decisions about calls must know of tools: the tool catalog, which this process follows, and whether edited
arguments fit.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from schemas.events import EffectClass
from services.chassis.catalog.reader import CatalogReader
from services.chassis.catalog.tool_arguments import ArgumentCheck
from services.ingest.http.body import ERRORS_SHOWN_MAX
from services.ingest.http.problems import ARGUMENTS_DO_NOT_FIT, CATALOG_NOT_LOADED, TOOL_NOT_IN_CATALOG, Problem


class Tools:
    """The tool catalog, as commands and routes ask it."""

    def __init__(self, reader: CatalogReader) -> None:
        self._reader = reader
        self._check = ArgumentCheck()

    async def follow(self) -> None:
        """Follow the catalog until cancelled. Requests that need it are refused until it has been read to its end
        once.
        """
        await self._reader.run()

    def effect(self, tool: str) -> EffectClass | None:
        """Return the tool's effect class by the operator's policy of now; None if the catalog lacks the tool."""
        found = self._reader.catalog.find(tool)
        return None if found is None else found.spec.effect

    def problem_of_name(self, tool: str) -> Problem | None:
        """Return why the tool's name cannot be used: the catalog is not loaded yet, or lacks it."""
        if not self._reader.ready.is_set():
            return Problem(CATALOG_NOT_LOADED, "The tool catalog is not loaded yet. Try again in a moment.")
        if self._reader.catalog.find(tool) is None:
            return Problem(TOOL_NOT_IN_CATALOG, f"No executor offers a tool named {tool[:100]!r}.")
        return None

    def problem_of_edit(self, tool: str, args: Mapping[str, JsonValue]) -> Problem | None:
        """Return why the arguments do not fit the tool's schema, or why that cannot be checked; None if they fit."""
        problem = self.problem_of_name(tool)
        if problem is not None:
            return problem
        spec = self._reader.catalog.tools[tool].spec
        misfits = self._check.misfits(spec, args)
        if not misfits:
            return None
        places = [f"args.{misfit.place}".rstrip(".") for misfit in misfits]
        errors: list[JsonValue] = [
            {"place": place, "detail": misfit.detail}
            for place, misfit in zip(places[:ERRORS_SHOWN_MAX], misfits, strict=False)
        ]
        detail = f"{places[0]}: {misfits[0].detail}."
        return Problem(ARGUMENTS_DO_NOT_FIT, detail, {"errors": errors, "schema": spec.input_schema})
