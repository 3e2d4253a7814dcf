"""Tidiness that a tool can judge. Each check is a function that names the offences, and is shown one."""

import ast
import contextlib
import functools
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from reference.settings import env_example, group_of, settings_classes
from services.chassis.settings import Everybody, Group, Limit, Settings, Some

ROOT = Path(__file__).parents[2]
PROGRAMS = ("schemas/", "services/", "reference/", "demo/", "bench/")
MODULE_LINES_MAX = 600
LONG_MODULES: dict[str, str] = {
    "tests/simulation/planted.py": "a table of faults, each a few lines of text",
    "schemas/events.py": "all events of the log, each field with the sentence that docs and JSON schemas show",
    "schemas/thread.py": "the control state, its transition table and the fold: one file owns the state",
    "tests/support/simulated/log.py": "the simulated broker and its clients, which share one state",
    "tests/unit/schemas/test_thread.py": "mirrors schemas/thread.py, row by row of its table",
    "tests/unit/importer/claude_code/test_session.py": "a test for each thing that a session may hold, on records that it makes",
}
"""Path and the reason why it is not two modules."""
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:work|root|home/(?!threadlog)\w+|Users)/")
# Hosts from which packages come: whoever clones this has registries of their own.
REGISTRY = re.compile(
    r"\b(?:pypi|pythonhosted|npmjs|crates|maven|apache\.org/maven2|proxy\.golang)\.(?:org|io|com|net)\b"
)


@functools.cache
def tracked() -> dict[str, str]:
    """Path → text of what git tracks, or would if it were added."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git work tree")
    listed = subprocess.run(
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    found = {}
    for path in filter(None, listed):
        with contextlib.suppress(UnicodeDecodeError, FileNotFoundError):
            found[path] = (ROOT / path).read_text()
    return found


def machine_traces(files: Mapping[str, str]) -> list[str]:
    return [
        f"{path}:{number}: {found[0]}"
        for path, text in files.items()
        for number, line in enumerate(text.splitlines(), 1)
        for found in [MACHINE_PATH.search(line) or REGISTRY.search(line)]
        if found
    ]


def inhabited_inits(files: Mapping[str, str]) -> list[str]:
    """An `__init__.py` holds the purpose of its room, in a docstring, and nothing else."""
    return [path for path, text in files.items() if Path(path).name == "__init__.py" and _statements(text)]


def _statements(text: str) -> list[ast.stmt]:
    module = ast.parse(text)
    return module.body if ast.get_docstring(module) is None else module.body[1:]


def long_modules(files: Mapping[str, str], excused: Mapping[str, str]) -> list[str]:
    return [
        f"{path}: {lines} lines"
        for path, text in files.items()
        if path.endswith(".py") and path not in excused and (lines := len(text.splitlines())) > MODULE_LINES_MAX
    ]


def orphaned_tasks(files: Mapping[str, str]) -> list[str]:
    """Tasks outside of any TaskGroup which the class or function that makes them never cancels, or does not keep."""
    return [
        f"{path}:{node.lineno}"
        for path, text in files.items()
        if path.startswith(PROGRAMS) and path.endswith(".py")
        for owner in ast.parse(text).body
        for node in ast.walk(owner)
        if isinstance(node, ast.Call) and _makes_bare_task(node) and not (_keeps(owner, node) and _cancels(owner))
    ]


def _makes_bare_task(call: ast.Call) -> bool:
    maker = ast.unparse(call.func)
    return maker.endswith("ensure_future") or re.search(r"(?:asyncio|loop|loop\(\))\.create_task$", maker) is not None


def _keeps(owner: ast.stmt, call: ast.Call) -> bool:
    return not any(isinstance(node, ast.Expr) and node.value is call for node in ast.walk(owner))


def _cancels(owner: ast.stmt) -> bool:
    calls = [node.func for node in ast.walk(owner) if isinstance(node, ast.Call)]
    return any(isinstance(called, ast.Attribute) and called.attr == "cancel" for called in calls)


def naked_ignores(files: Mapping[str, str]) -> list[str]:
    """`type: ignore` and `noqa` name what they silence, and why."""
    naked = re.compile(r"#\s*(?:type:\s*ignore(?!\[)|noqa(?!:))")
    return [
        f"{path}:{number}"
        for path, text in files.items()
        if path.endswith(".py")
        for number, line in enumerate(text.splitlines(), 1)
        if naked.search(line)
    ]


def unknown_environment(files: Mapping[str, str], kinds: list[type[Settings]]) -> list[str]:
    """Variables that deployment files set and no service reads."""
    known = {f"THREADLOG_{name}".upper() for kind in kinds for name in kind.model_fields}
    return [
        f"{path}: {name}"
        for path, text in files.items()
        for name in sorted(set(re.findall(r"THREADLOG_[A-Z_]+", text)))
        if name not in known
    ]


def test_no_file_knows_a_machine_or_a_registry() -> None:
    # This file holds the examples.
    assert (
        machine_traces({path: text for path, text in tracked().items() if path != "tests/unit/test_repository.py"})
        == []
    )


PACKAGES = "pypi" + chr(46) + "org"


@pytest.mark.parametrize(
    "line",
    [
        "see /root/x",
        'open("/work/a")',
        "/home/somebody/a",
        f"--index-url https://{PACKAGES}/simple",
        f"files.{PACKAGES}",
    ],
)
def test_a_trace_of_a_machine_is_found(line: str) -> None:
    assert machine_traces({"a.txt": f"fine\n{line}\n"})


@pytest.mark.parametrize("line", ["a/root/b", "GET /works", "network/", "/home/threadlog/x", "the working tree"])
def test_other_text_is_no_trace(line: str) -> None:
    assert machine_traces({"a.txt": line}) == []


def test_packages_hold_no_code() -> None:
    assert inhabited_inits(tracked()) == []


def test_a_package_with_code_is_found() -> None:
    files = {"a/__init__.py": "x = 1\n", "b/__init__.py": "\n", "c/__init__.py": '"""Rooms."""\n'}
    files["d/__init__.py"] = '"""Rooms."""\nimport os\n'
    assert inhabited_inits(files) == ["a/__init__.py", "d/__init__.py"]


def test_no_module_is_long_without_a_reason() -> None:
    assert long_modules(tracked(), LONG_MODULES) == []


def test_excuses_are_needed() -> None:
    needless = [path for path in LONG_MODULES if not long_modules({path: tracked().get(path, "")}, {})]
    assert needless == []


def test_a_long_module_is_found() -> None:
    files = {"a.py": "x = 1\n" * (MODULE_LINES_MAX + 1), "b.py": "x = 1\n" * MODULE_LINES_MAX}
    assert long_modules(files, {}) == [f"a.py: {MODULE_LINES_MAX + 1} lines"]


def test_every_task_has_a_parent() -> None:
    assert orphaned_tasks(tracked()) == []


@pytest.mark.parametrize(
    "made",
    [
        "task = asyncio.create_task(work())",
        "asyncio.create_task(work())",
        "await asyncio.wait([asyncio.ensure_future(work())])",
        "self.task = asyncio.get_running_loop().create_task(work())",
        "self.task = self._loop.create_task(work())",
    ],
)
def test_a_task_without_parent_is_found(made: str) -> None:
    assert orphaned_tasks({"services/a.py": f"async def make(self):\n    {made}\n"}) == ["services/a.py:2"]


def test_a_dropped_task_is_found_though_another_is_cancelled() -> None:
    text = "async def make(other):\n    asyncio.create_task(work())\n    other.cancel()\n"
    assert orphaned_tasks({"services/a.py": text}) == ["services/a.py:2"]


@pytest.mark.parametrize(
    "body", ["task = asyncio.create_task(work())\n    task.cancel()", "group.create_task(work())", "spawn(work(), 'a')"]
)
def test_a_task_with_parent_is_not(body: str) -> None:
    assert orphaned_tasks({"services/a.py": f"async def make(group, spawn):\n    {body}\n"}) == []


def test_ignores_say_what_they_ignore() -> None:
    assert naked_ignores(tracked()) == []


def test_a_naked_ignore_is_found() -> None:
    text = "a = 1  # type" + ": ignore\nb = 2  # no" + "qa\nc = 3  # type: ignore[misc]  # because\n"
    assert naked_ignores({"a.py": text}) == ["a.py:1", "a.py:2"]


def test_env_example_is_complete() -> None:
    assert tracked().get(".env.example") == env_example(settings_classes()), "run `make env-example`"


def test_compose_sets_what_services_read() -> None:
    files = {
        path: text for path, text in tracked().items() if path == "docker-compose.yml" or path.startswith("deploy/")
    }
    assert unknown_environment(files, settings_classes()) == []


def test_a_variable_that_nobody_reads_is_found() -> None:
    files = {"compose.yml": "THREADLOG_INSTANCE: a\nTHREADLOG_INSTANCES: b"}
    assert unknown_environment(files, [Settings]) == ["compose.yml: THREADLOG_INSTANCES"]


class Example(Settings):
    model_config = SettingsConfigDict(env_prefix="THREADLOG_")

    allowed: Limit[tuple[str, ...]] = ("a", "b")
    api_key: Everybody[SecretStr] = SecretStr("")
    tools_max: Some[int] = Field(default=3, ge=1)
    """How many
    tools.
    """
    missing: str


def test_env_example_shows_group_default_and_meaning() -> None:
    everybody, some, limits = (f"# ===== {group.value} =====" for group in Group)
    service = f"# --- {Example.__module__.split('.')[1]} ---"
    lines = [line for line in env_example([Example]).splitlines() if line]
    assert lines[lines.index(everybody) :] == [
        everybody,
        service,
        "THREADLOG_API_KEY=",
        some,
        service,
        "# How many tools.",
        "THREADLOG_TOOLS_MAX=3",
        "# THREADLOG_MISSING=",
        limits,
        service,
        'THREADLOG_ALLOWED=["a", "b"]',
    ]


def without_group(kinds: Iterable[type[Settings]]) -> list[str]:
    """Settings whose type does not say who sets them: Everybody[…], Some[…] or Limit[…]."""
    return [
        f"{kind.__name__}.{name}"
        for kind in kinds
        for name in kind.__annotations__
        if name in kind.model_fields and group_of(kind.model_fields[name]) is None
    ]


def test_each_setting_has_a_group() -> None:
    assert without_group(settings_classes()) == []


def test_a_setting_without_group_is_found() -> None:
    assert without_group([Example]) == ["Example.missing"]


@pytest.mark.parametrize("kind", settings_classes())
def test_env_example_is_what_holds_without_it(kind: type[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    without = kind()
    for line in env_example(settings_classes()).splitlines():
        if not line.startswith("#") and "=" in line:
            monkeypatch.setenv(*line.split("=", 1))
    assert kind() == without


def test_every_settings_class_is_found() -> None:
    declared = {
        node.name
        for path, text in tracked().items()
        if re.fullmatch(r"services/\w+/settings\.py", path)
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and any("Settings" in ast.unparse(base) for base in node.bases)
    }
    assert {kind.__name__ for kind in settings_classes()} == declared
