"""`python -m tests.simulation SEED` plays one seed and prints its story; `--seeds N` plays N of them on all cores."""

import argparse
import sys

from tests.simulation.runner import play_many
from tests.simulation.session import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="the seed to play")
    parser.add_argument("--seeds", type=int, help="how many to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--workers", type=int, help="processes; as many as there are cores")
    given = parser.parse_args()
    if given.seeds is not None:
        return play_many(given.first, given.seeds, given.workers)
    if given.seed is None:
        parser.error("give a seed, or --seeds")
    try:
        story = play(given.seed)
    except AssertionError as error:
        print(error)
        return 1
    print(story.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
