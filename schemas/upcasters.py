"""Old versions of events, read as the newest: one step at a time, (kind, version) to the data of version + 1.

No event has a second version yet. `tests/unit/schemas/test_upcasters.py` keeps a worked example.
"""

from collections.abc import Callable, Mapping

Data = dict[str, object]
Upcast = Callable[[Data], Data]
Upcasters = Mapping[tuple[str, int], Upcast]

UPCASTERS: Upcasters = {}


def upcast(kind: str, version: int, newest: int, data: Data, upcasters: Upcasters = UPCASTERS) -> Data:
    """Raises KeyError where the chain has a hole; a test keeps it whole for every released version."""
    for step in range(version, newest):
        data = upcasters[kind, step](data)
    return data
