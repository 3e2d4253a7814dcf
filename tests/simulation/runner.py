"""Many seeds, on all cores, until one fails."""

import contextlib
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.session import play

PROGRESS_SECONDS = 2.0
SEEDS_PER_COLLECTION = 20
CHUNK = 10
"""Seeds that a worker takes at once."""


class Played(NamedTuple):
    seed: int
    failure: str | None
    """The story of a seed that failed."""


def play_many(first: int, count: int, workers: int | None = None) -> int:
    """Prints how it goes, and the story of the first seed that fails; the exit status."""
    workers = workers or os.cpu_count() or 1
    began = shown = time.monotonic()
    done = 0
    with contextlib.closing(_results(first, count, workers)) as results:
        for played in results:
            done += 1
            now = time.monotonic()
            if played.failure is not None:
                print(played.failure)
                print(f"seed {played.seed} failed, of {done} played at {done / (now - began):.1f} seeds/s.")
                print(f"Again: python -m tests.simulation {played.seed}")
                return 1
            if now - shown >= PROGRESS_SECONDS:
                shown = now
                print(f"{done}/{count} seeds, {done / (now - began):.1f} seeds/s", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    print(f"{done} seeds without a violation in {seconds:.0f} s: {done / seconds:.1f} seeds/s on {workers} cores.")
    return 0


def _results(first: int, count: int, workers: int) -> Iterator[Played]:
    seeds = range(first, first + count)
    if workers == 1:
        yield from map(play_one, seeds)
        return
    # Leaving it ends the workers, whatever they are at.
    with multiprocessing.Pool(workers, _begin) as pool:
        yield from pool.imap_unordered(play_one, seeds, chunksize=CHUNK)


def _begin() -> None:
    """What was imported is not collected again."""
    gc.collect()
    gc.freeze()
    gc.disable()


def play_one(seed: int) -> Played:
    try:
        play(seed)
    except AssertionError as error:
        return Played(seed, str(error))
    finally:
        if seed % SEEDS_PER_COLLECTION == 0:
            gc.collect()
    return Played(seed, None)
