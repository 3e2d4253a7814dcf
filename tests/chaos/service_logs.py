"""What services logged of failures of their own: the causes of answers that should not have been given."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import orjson

FAILURES: Final = frozenset({"service_failed", "library_log"})
"""The service ended by itself; a library, such as the HTTP server, met an exception."""
FRAMES_SHOWN: Final = 3
TEXT_CHARACTERS_MAX: Final = 600


class Failure(NamedTuple):
    service: str
    """Name of its log, such as `ingest-0`."""
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.service} {self.kind}: {self.text}"


def failures(folder: Path) -> list[Failure]:
    """Of all logs in the folder, each kind of failure once per service, with how often it came."""
    counted: dict[Failure, int] = {}
    for log in sorted(folder.glob("*.log")):
        for failure in failures_of(log.stem, log.read_bytes().splitlines()):
            counted[failure] = counted.get(failure, 0) + 1
    return [failure._replace(text=f"{failure.text} ({times}x)") for failure, times in counted.items()]


def failures_of(service: str, lines: Iterable[bytes]) -> Iterator[Failure]:
    """Only what has an exception. Lines that are none of ours are a crash's own words."""
    for line in lines:
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(entry, dict) and entry.get("event") in FAILURES and entry.get("exception"):
            yield Failure(service, str(entry["event"]), _text(entry)[:TEXT_CHARACTERS_MAX])


def _text(entry: dict[str, object]) -> str:
    said = str(entry.get("error") or entry.get("message") or "").strip()
    exceptions = entry.get("exception")
    return " ".join([said, *_causes(exceptions)]) if isinstance(exceptions, list) else said


def _causes(exceptions: list[dict[str, object]]) -> Iterator[str]:
    for exception in exceptions:
        frames = exception.get("frames")
        places = [
            f"{Path(str(frame['filename'])).name}:{frame['lineno']} {frame['name']}"
            for frame in (frames if isinstance(frames, list) else [])[-FRAMES_SHOWN:]
        ]
        yield f"{exception.get('exc_type')}({exception.get('exc_value')}) at {', '.join(places)}"
