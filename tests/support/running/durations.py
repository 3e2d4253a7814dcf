"""How long tests take, as far as is known: `tests/durations.json`, which `make test WRITE_DURATIONS=1` renews.

The file has the mean seconds of the tests of each file, and beside it each test that takes longer than `LONG_SECONDS`.
It need not be exact. A test that it does not know is taken for a quick one, and nothing depends on the file but the
order of tests and the percentage that is shown.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LONG_SECONDS: Final = 1.0
"""Tests above this are remembered one by one; a thousand quick ones would make the file long and change with each run."""
UNKNOWN_SECONDS: Final = 0.05
FILE: Final = Path(__file__).parents[2] / "durations.json"


class Durations:
    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = dict(seconds)

    @classmethod
    def read(cls, file: Path = FILE) -> "Durations":
        return cls(json.loads(file.read_text()) if file.is_file() else {})

    def of(self, nodeid: str) -> float:
        """Return the expected seconds of one test."""
        found = self._seconds.get(nodeid)
        return self._seconds.get(file_of(nodeid), UNKNOWN_SECONDS) if found is None else found

    def renewed(self, measured: Mapping[str, float]) -> "Durations":
        """Take over what was measured. Files that were not run keep what was known of them."""
        by_file: dict[str, list[float]] = defaultdict(list)
        seconds: dict[str, float] = {}
        for nodeid, taken in measured.items():
            if taken >= LONG_SECONDS:
                seconds[nodeid] = round(taken, 1)
            else:
                by_file[file_of(nodeid)].append(taken)
        means = {file: round(sum(each) / len(each), 4) for file, each in by_file.items()}
        files = {file_of(nodeid) for nodeid in measured}
        kept = {name: known for name, known in self._seconds.items() if file_of(name) not in files}
        return Durations(kept | seconds | means)

    def write(self, root: Path, file: Path = FILE) -> None:
        """Leave out the files that are not below `root` any more."""
        kept = {name: taken for name, taken in self._seconds.items() if (root / file_of(name)).is_file()}
        file.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
