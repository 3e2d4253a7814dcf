"""What names artifacts, while generations of the views take each other's place."""

from typing import Any, cast

import pytest

from services.chassis.errors import SetupError
from services.cli.artifacts.references import PAGE, SWAPS_MAX, ViewedReferences

OBJECTS = [("acme", f"{number:064x}") for number in range(PAGE + 1)] + [("beta", "f" * 64)]


class Log:
    async def partition_count(self, _topic: str) -> int:
        return 1

    async def end_offsets(self, tps: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(tps, 10)


class Views:
    """A connection. `generations`: to which offset each has come, and what it knows to be named; one takes the place of
    another with each question for names.
    """

    def __init__(self, *generations: tuple[int, set[str]]) -> None:
        self.generations = list(generations)
        self.pages = 0

    async def fetchval(self, _statement: str, _tenant: str) -> bool:
        return False

    async def fetch(self, statement: str, *given: Any) -> list[dict[str, Any]]:
        if "positions" in statement:
            at, names = self.generations[0]
            self.generations[0] = 10, names  # it is followed from now on
            return [{"partition": 0, "next_offset": at}]
        if "import_files" in statement:
            return []
        if "distinct on" in statement:
            self.pages += 1
            *after, most = given
            found = [one for one in OBJECTS if one > tuple(after)][:most]
            return [{"tenant": one[0], "sha256": one[1], "size": None, "thread": "t", "seq": 1} for one in found]
        _, names = self.generations[0]
        if len(self.generations) > 1:
            del self.generations[0]
        return [{"sha256": name} for name in names & set(given[1])]


def references(views: Views) -> ViewedReferences:
    twin = cast("Any", views)
    return ViewedReferences(twin, twin, cast("Any", Log()), 1.0)


async def test_names_come_from_views_that_have_passed_the_end() -> None:
    """Those that were waited for may have been replaced by older ones in between."""
    views = Views((10, set()), (3, {"a"}))
    found = references(views)
    await found.catch_up()
    assert await found.named("acme", ["a", "b"]) == {"a"}


async def test_generations_without_end_are_waited_for_with_a_limit() -> None:
    views = Views(*[(3, set[str]())] * (SWAPS_MAX + 2))
    found = references(views)
    await found.catch_up()
    with pytest.raises(SetupError, match="one generation"):
        await found.named("acme", ["a"])


@pytest.mark.parametrize(("tenant", "count", "pages"), [(None, PAGE + 2, 3), ("acme", PAGE + 1, 2), ("beta", 1, 2)])
async def test_all_are_read_in_pages(tenant: str | None, count: int, pages: int) -> None:
    """So that none of them keeps a swap waiting for as long as objects take to be read."""
    views = Views((10, set()))
    assert len([one async for one in references(views).all(tenant)]) == count
    assert views.pages == pages
