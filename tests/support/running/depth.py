"""How deep tests look that can look as deep as there is time: each depth is what one command takes.

`make check` and `make test` are for people who wait. What is deep by nature is `make proof`, whole at night, and with
SHORT=1 in CI; `make fuzz` runs rounds of new examples until it is stopped.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Depth:
    examples: int
    """Of a property."""
    machine_examples: int
    """Of machines and walks: a race needs many moves in the right order, which few examples have."""
    seeds: int
    """Of the simulation: the first ones, the same each time."""
    new_seeds: int = 0
    """Of the simulation, others each time."""
    plants_faults: bool = True
    """Whether each fault is planted that the simulation has to find."""
    draws_seeds_of_faults: bool = False
    """Whether they are looked for with new seeds. Otherwise the search begins shortly before a seed that found it."""
    is_endless: bool = False


MEASURED: Final = "test"
"""The depth at which `tests/durations.json` is measured."""
DEPTHS: Final[Mapping[str, Depth]] = {
    "default": Depth(200, 200, seeds=20, plants_faults=False),
    "test": Depth(200, 500, seeds=200),
    "proof-short": Depth(200, 500, seeds=200, new_seeds=300, plants_faults=False),
    "proof": Depth(2_000, 10_000, seeds=500, new_seeds=5_000, draws_seeds_of_faults=True),
    "fuzz": Depth(20_000, 20_000, seeds=500, new_seeds=1_000, draws_seeds_of_faults=True, is_endless=True),
}
"""By the name of a profile in THREADLOG_HYPOTHESIS_PROFILE."""


def times_longer(nodeid: str, depth: Depth) -> float:
    """Return how much longer a test takes at this depth than it was measured to take."""
    if nodeid.startswith("tests/property/"):
        return depth.machine_examples / DEPTHS[MEASURED].machine_examples
    return 1.0
