"""The house: how many modules a room has, what rooms are called and for, and which way their imports go.

Each check is a function that names the offences, and is shown one.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from reference.rooms import PAGE, Room, rooms, table, with_table

ROOT = Path(__file__).parents[2]
MODULES_MAX = 14
"""Modules at one level: as many names as a reader takes in at a glance."""
SAME_PREFIX_MAX = 2
"""Modules at one level that begin with the same word. The third makes a folder of them."""
HOUSE = ("schemas", "services", "reference", "demo", "bench", "examples", "tests/unit", "tests/support")
"""Where rooms are looked for. The other folders of tests are lists of scenarios, found by their names."""
PICTURE = ROOT / "docs" / "ARCHITECTURE.md"


def modules() -> dict[str, list[str]]:
    """Folder → names of its modules, without `__init__`."""
    found: dict[str, list[str]] = defaultdict(list)
    for top in HOUSE:
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.name != "__init__.py":
                found[path.parent.relative_to(ROOT).as_posix()].append(path.stem)
    return found


def crowded(found: Mapping[str, Iterable[str]]) -> list[str]:
    return [
        f"{folder}: {len(list(names))} modules" for folder, names in found.items() if len(list(names)) > MODULES_MAX
    ]


def prefixed(found: Mapping[str, Iterable[str]]) -> list[str]:
    """Levels where several modules share their first word, which is then the name of a room."""
    offences = []
    for folder, names in found.items():
        by_word: dict[str, list[str]] = defaultdict(list)
        for name in names:
            by_word[name.removeprefix("test_").split("_")[0]].append(name)
        offences += [f"{folder}: {', '.join(same)}" for same in by_word.values() if len(same) > SAME_PREFIX_MAX]
    return offences


def unsaid(found: Iterable[Room]) -> list[str]:
    """Rooms without a purpose of one sentence."""
    return [
        room.path for room in found if re.fullmatch(r"[A-Zx][^.]*\.", re.sub(r"`[^`]*`", "x", room.purpose)) is None
    ]


def test_no_level_is_crowded() -> None:
    assert crowded(modules()) == []


def test_a_crowded_level_is_found() -> None:
    names = [f"m{number}" for number in range(MODULES_MAX + 1)]
    assert crowded({"a": names, "b": names[1:]}) == [f"a: {MODULES_MAX + 1} modules"]


def test_modules_with_one_prefix_have_a_room() -> None:
    assert prefixed(modules()) == []


@pytest.mark.parametrize("names", [["accept", "accept_calls", "accept_plans"], ["test_a_1", "test_a_2", "a_3"]])
def test_modules_with_one_prefix_are_found(names: list[str]) -> None:
    assert prefixed({"a": names, "b": names[1:]}) == [f"a: {', '.join(names)}"]


def test_every_room_says_what_it_is_for() -> None:
    assert unsaid(rooms()) == []


@pytest.mark.parametrize("purpose", ["", "all about rooms", "Two. Sentences.", "no capital."])
def test_a_room_that_does_not_say_is_found(purpose: str) -> None:
    assert unsaid([Room("a", purpose), Room("b", "Reads `views.threads`.")]) == ["a"]


def test_the_table_of_rooms_is_true() -> None:
    page = PAGE.read_text()
    assert page == with_table(page, table(rooms())), "run python -m reference.rooms"


# The picture


def imports_of(root: Path, tops: Iterable[str]) -> dict[str, set[str]]:
    """Module → modules of the same tree that it imports."""
    known = {
        path.relative_to(root).with_suffix("").as_posix().replace("/", ".")
        for top in tops
        for path in (root / top).rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for module in known:
        tree = ast.parse((root / f"{module.replace('.', '/')}.py").read_text())
        names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        found[module] = names & known
    return found


def room_of(module: str) -> str:
    """`services.ingest.streams.live` is in `ingest/streams`, `services.ingest.app` in `ingest`, schemas in `schemas`."""
    folders = module.split(".")[:-1]
    return "schemas" if folders[0] == "schemas" else "/".join(folders[1:3])


def drawn(page: str) -> dict[str, list[str]]:
    """Package → its rooms from top to bottom, as the picture's boxes list them."""
    boxes = re.findall(r'^\s*(\w+)\["<b>([\w-]+)</b>(.*?)"\]$', page, re.MULTILINE)
    return {name.replace("-", "_"): [line.strip() for line in rest.split("<br/>")[1:]] for _, name, rest in boxes}


def arrows(page: str) -> set[tuple[str, str]]:
    """The picture's arrows from package to package."""
    names = {
        key: name.replace("-", "_") for key, name in re.findall(r'^\s*(\w+)\["<b>([\w-]+)</b>', page, re.MULTILINE)
    }
    found = set()
    for left, right in re.findall(r"^\s*([\w &]+?) --> ([\w &]+)$", page, re.MULTILINE):
        found |= {(names[a.strip()], names[b.strip()]) for a in left.split("&") for b in right.split("&")}
    return found


def wrong_rooms(page: str, imports: Mapping[str, set[str]]) -> list[str]:
    """Rooms that are missing in the picture, that are no more, and that import one which is drawn above them."""
    boxes = drawn(page)
    real: dict[str, set[str]] = defaultdict(set)
    for module in imports:
        package, _, room = room_of(module).partition("/")
        real[package] |= {room} if room else set()
    offences = [f"{package}: {sorted(real[package] ^ set(boxes.get(package, ())))}" for package in sorted(real)]
    offences = [line for line in offences if not line.endswith("[]")]
    for module, imported in sorted(imports.items()):
        package, _, room = room_of(module).partition("/")
        for other in sorted(imported):
            its_package, _, its_room = room_of(other).partition("/")
            if package != its_package or not room or not its_room or room == its_room:
                continue
            order = boxes.get(package, [])
            if {room, its_room} <= set(order) and order.index(its_room) < order.index(room):
                offences.append(f"{module} imports {other}, which is drawn above it")
    return offences


def wrong_arrows(page: str, imports: Mapping[str, set[str]]) -> list[str]:
    """Imports between packages that no drawn arrows lead to, and arrows that no import bears out."""
    real = {
        (room_of(module).split("/")[0], room_of(other).split("/")[0])
        for module, imported in imports.items()
        for other in imported
    }
    real = {(a, b) for a, b in real if a != b and a and b}
    shown = arrows(page)
    return [f"not drawn: {a} → {b}" for a, b in sorted(real - closure(shown))] + [
        f"drawn, but not so: {a} → {b}" for a, b in sorted(shown - real)
    ]


def closure(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The arrows, and those that follow from them: whoever imports the top of a chain knows its bottom, too."""
    found = set(pairs)
    while more := {(a, d) for a, b in found for c, d in found if b == c} - found:
        found |= more
    return found


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return imports_of(ROOT, ("schemas", "services"))


def test_the_picture_shows_every_room_in_order(imports: dict[str, set[str]]) -> None:
    assert wrong_rooms(PICTURE.read_text(), imports) == []


def test_the_picture_shows_every_arrow(imports: dict[str, set[str]]) -> None:
    assert wrong_arrows(PICTURE.read_text(), imports) == []


EXAMPLE = """
    one["<b>one</b><br/>above<br/>below"]
    two["<b>two</b><br/>gone"]
    one --> two
"""


def test_a_wrong_picture_is_found() -> None:
    imports = {
        "services.one.below.b": {"services.one.above.a"},
        "services.one.above.a": set(),
        "services.two.new.n": {"services.one.above.a"},
    }
    assert wrong_rooms(EXAMPLE, imports) == [
        "two: ['gone', 'new']",
        "services.one.below.b imports services.one.above.a, which is drawn above it",
    ]
    assert wrong_arrows(EXAMPLE, imports) == ["not drawn: two → one", "drawn, but not so: one → two"]
