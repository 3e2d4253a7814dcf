"""What is pure and slow is done once: decoding a record, once in a run; compiling a tool's schema, once for all runs.

Nothing else: each reader folds for itself, so that a fold that is not the same everywhere is found.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any
from unittest.mock import patch

from schemas.canonical import canonical_json
from schemas.codec import Record, Unreadable, decode
from schemas.envelope import Headers
from services.chassis.catalog import tool_arguments
from services.chassis.log.port import Incoming

NAME = "decode"


@contextlib.contextmanager
def decoding_once() -> Iterator[None]:
    """For what was imported from the services by then. The records have to stay in memory meanwhile."""
    decoded: dict[tuple[int, int, int], Record | Unreadable] = {}
    really = decode

    def decode_once(
        key: bytes | None, headers: Headers, value: bytes | None, offset: int = -1, timestamp_ms: int = 0
    ) -> Record | Unreadable:
        place = (id(headers), id(value), offset)
        found = decoded.get(place)
        if found is None:
            found = decoded[place] = really(key, headers, value, offset, timestamp_ms)
        return found

    with contextlib.ExitStack() as patched:
        for module in _decoding():
            patched.enter_context(patch.object(module, NAME, decode_once))
        yield


@contextlib.contextmanager
def compiling_once() -> Iterator[None]:
    """A schema is compiled by each runtime and each ingest, which live for seconds here, and for weeks elsewhere."""
    with patch.object(tool_arguments, "_compiled", _compiled_once):
        yield


_compiled: Callable[[Mapping[str, Any]], Any] = tool_arguments._compiled
_COMPILED: dict[bytes, Any] = {}


def _compiled_once(schema: Mapping[str, Any]) -> Any:
    key = canonical_json(schema)
    if key not in _COMPILED:
        _COMPILED[key] = _compiled(schema)
    return _COMPILED[key]


@cache
def _decoding() -> list[ModuleType]:
    """The modules that decode."""
    modules = list(sys.modules.items())
    return [module for name, module in modules if name.startswith(("services.", "tests.")) and _decodes(module)]


def _decodes(module: ModuleType) -> bool:
    return getattr(module, NAME, None) is decode


def decode_incoming(incoming: Incoming) -> Record | Unreadable:
    return decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)
