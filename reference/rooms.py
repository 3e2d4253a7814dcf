"""The table of rooms in CONTRIBUTING.md: `python -m reference.rooms` writes it, and a test compares.

A room is a package. Its purpose is the docstring of its `__init__.py`, which holds nothing else.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "CONTRIBUTING.md"
HOUSE: Final = ("schemas", "services", "reference", "demo", "examples", "bench")
BEGIN: Final = "<!-- rooms: python -m reference.rooms -->\n"
END: Final = "<!-- end of rooms -->\n"


class Room(NamedTuple):
    path: str
    purpose: str
    """One sentence; empty where the package does not say."""


def rooms(root: Path = ROOT) -> Iterator[Room]:
    """Yield every package of the house in the order of the paths, without the folder `services` itself."""
    for top in HOUSE:
        for init in sorted((root / top).rglob("__init__.py")):
            path = init.parent.relative_to(root).as_posix()
            if path != "services":
                yield Room(path, " ".join((ast.get_docstring(ast.parse(init.read_text())) or "").split()))


def table(found: Iterator[Room]) -> str:
    """Return the Markdown table."""
    rows = [f"| `{room.path}` | {room.purpose} |\n" for room in found]
    return "".join(["| room | what it is for |\n", "|---|---|\n", *rows])


def with_table(page: str, written: str) -> str:
    """Return the page with its table replaced. Raises ValueError where the page has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}{written}{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), table(rooms())))
