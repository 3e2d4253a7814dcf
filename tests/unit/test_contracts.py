"""The import contracts of pyproject.toml fail for what they forbid: each kind is shown an offence in a house of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

CYCLE = """
[tool.importlinter]
root_package = "house"
[[tool.importlinter.contracts]]
name = "No circle"
type = "acyclic_siblings"
ancestors = ["house.*"]
"""
PURE = """
[tool.importlinter]
root_package = "house"
include_external_packages = true
[[tool.importlinter.contracts]]
name = "Pure"
type = "forbidden"
source_modules = ["house.service.deciding"]
forbidden_modules = ["asyncio", "os", "time", "structlog", "asyncpg"]
allow_indirect_imports = true
"""
LAYERS = """
[tool.importlinter]
root_package = "house"
[[tool.importlinter.contracts]]
name = "Arrows point down"
type = "layers"
layers = ["house.service", "house.chassis"]
"""


def is_kept(folder: Path, config: str, modules: dict[str, str]) -> bool:
    """Build the package `house` with these modules, and return whether its contract holds."""
    for name, text in {"service.a": "", "chassis.c": "", **modules}.items():
        path = folder / "house" / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for parent in path.relative_to(folder).parents[:-1]:
            (folder / parent / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(config)
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    ran = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True, env={"PYTHONPATH": str(folder)}
    )
    assert "Contracts: " in ran.stdout, ran.stdout + ran.stderr
    return ran.returncode == 0


@pytest.mark.parametrize(
    ("config", "good", "bad"),
    [
        pytest.param(
            CYCLE,
            {"service.one.m": "import house.service.two.m"},
            {"service.one.m": "import house.service.two.m", "service.two.m": "import house.service.one.m"},
            id="rooms in a circle",
        ),
        pytest.param(
            PURE,
            {"service.deciding.m": "import json"},
            {"service.deciding.m": "import asyncio"},
            id="a pure room that acts",
        ),
        pytest.param(
            LAYERS,
            {"service.m": "import house.chassis.c"},
            {"chassis.m": "import house.service.a"},
            id="an arrow that points up",
        ),
    ],
)
def test_an_offence_is_found(tmp_path: Path, config: str, good: dict[str, str], bad: dict[str, str]) -> None:
    empty = dict.fromkeys({*good, *bad, "service.two.m", "service.deciding.m"}, "")
    assert is_kept(tmp_path / "good", config, empty | good)
    assert not is_kept(tmp_path / "bad", config, empty | bad)
