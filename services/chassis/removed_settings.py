"""Environment variables that earlier versions read, and what became of them.

A service that starts with one of them in its environment logs a warning that names it: a value that somebody set on
purpose must not be dropped without a word. The name is written without its prefix `THREADLOG_`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "THREADLOG_"

SHARED: Final[Mapping[str, str]] = {}
"""What all services read. Each entry says in a clause what holds now, such as `is always 2 ms`."""

INGEST: Final[Mapping[str, str]] = {}

PROJECTOR: Final[Mapping[str, str]] = {}

ROLLUPS: Final[Mapping[str, str]] = {}

RUNTIME: Final[Mapping[str, str]] = {}

EXECUTOR: Final[Mapping[str, str]] = {}

REMOVED: Final[Mapping[str, str]] = {**SHARED, **INGEST, **PROJECTOR, **ROLLUPS, **RUNTIME, **EXECUTOR}


def removed_in(environment: Iterable[str]) -> list[str]:
    """Return a sentence for each variable of the environment that is no longer read, sorted by name."""
    names = sorted(name for name in environment if name.removeprefix(PREFIX) in REMOVED and name.startswith(PREFIX))
    return [f"{name} is no longer read: it {REMOVED[name.removeprefix(PREFIX)]}" for name in names]
