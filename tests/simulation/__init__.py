"""All services, run on a simulated log, clock, database, model and outside world, under everything that may go wrong.

One seed decides everything: the same seed gives the same story, byte for byte. `session` says what one run is.
Nothing is imported before it is asked for, so that `planted` can change the source beforehand.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.story import Story


def play(seed: int, **choices: Any) -> "Story":
    """Raises AssertionError, with the seed and the story, for what must not be. `choices` are fields of the `Plan` that
    the seed shall not decide.
    """
    from tests.simulation.session import play as played

    return played(seed, **choices)
