"""Decoding is pure and done by every reader of a record: in a simulation, once.

Only decoding: each reader folds for itself, so that a fold that is not the same everywhere is found.
"""

import contextlib
import sys
from collections.abc import Iterator
from unittest.mock import patch

from schemas.codec import Record, Unreadable, decode
from schemas.envelope import Headers
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
        for name, module in list(sys.modules.items()):
            if name.startswith(("services.", "tests.")) and getattr(module, NAME, None) is decode:
                patched.enter_context(patch.object(module, NAME, decode_once))
        yield


def decode_incoming(incoming: Incoming) -> Record | Unreadable:
    return decode(incoming.key, incoming.headers, incoming.value, incoming.offset, incoming.timestamp_ms)
