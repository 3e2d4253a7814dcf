"""Where a thread of Codex comes from, which of its turns are copies, and which of its records came twice."""

import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from services.importer.codex.records import milliseconds, word
from services.importer.model import Parent

_TIME_ORDERED_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_ANY_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
COPIED_WITHIN_MS = 10
"""A copy is written at once. No model answers that fast."""
GAPS_MAX = 10_000
"""Gaps that are remembered; a file may have as many as it has lines."""


def parent_of(meta: Mapping[str, Any], copied_from: str | None) -> Parent | None:
    """Return where the thread comes from, or None. `copied_from` is the session whose own meta follows this one."""
    spawner = _spawner(meta)
    if spawner is not None:
        return Parent(spawner, "child", is_copied=copied_from is not None)
    base = meta.get("history_base")
    if type(base) is dict and word(base.get("thread_id")) is not None:
        through = base.get("end_ordinal_exclusive")
        if type(through) is not int:
            through = meta.get("forked_from_ordinal_exclusive")
        return Parent(base["thread_id"], "fork", through=str(through) if type(through) is int else None)
    source = word(meta.get("forked_from_id")) or copied_from
    return None if source is None else Parent(source, "fork", is_copied=True)


def _spawner(meta: Mapping[str, Any]) -> str | None:
    """Return the thread that began this one as its child, or None."""
    source = meta.get("source")
    subagent = source.get("subagent") if type(source) is dict else None
    spawn = subagent.get("thread_spawn") if type(subagent) is dict else None
    told = word(spawn.get("parent_thread_id")) if type(spawn) is dict else None
    return told or word(meta.get("parent_thread_id"))


def is_copy(turn: str | None, session: str, prompt: object, answer: object) -> bool | None:
    """Return whether a turn was copied from the parent. Ids that contain their time decide; otherwise how fast the
    answer came. None: neither decides.
    """
    if turn is not None and _TIME_ORDERED_ID.match(turn) and _TIME_ORDERED_ID.match(session):
        return turn < session
    asked, answered = milliseconds(prompt), milliseconds(answer)
    if asked is None or answered is None:
        return None
    return answered - asked <= COPIED_WITHIN_MS


def id_in(name: str) -> str:
    """Return the session's id from its file's name, or else the name."""
    found = _ANY_ID.findall(name)
    return found[-1] if found else name.rpartition("/")[2].removesuffix(".jsonl") or "unnamed"


class Ordinals:
    """The ordinals that have come are kept as the next one and the gaps before it."""

    def __init__(self) -> None:
        self._next = 0
        self._gaps: list[range] = []
        """In order."""

    def take(self, ordinal: int) -> bool:
        """Return whether the ordinal comes for the first time."""
        if ordinal >= self._next:
            if ordinal > self._next and len(self._gaps) < GAPS_MAX:
                self._gaps.append(range(self._next, ordinal))
            self._next = ordinal + 1
            return True
        place = bisect_right(self._gaps, ordinal, key=lambda gap: gap.start) - 1
        if place < 0 or ordinal not in self._gaps[place]:
            return False
        gap = self._gaps[place]
        rest = [part for part in (range(gap.start, ordinal), range(ordinal + 1, gap.stop)) if part]
        self._gaps[place : place + 1] = rest
        return True

    @property
    def end(self) -> int:
        """Return the ordinal after the last one."""
        return self._next

    @property
    def missing(self) -> int:
        """Return the number of gaps that no later record filled. What lies before the first record is a fork's
        parent.
        """
        return len([gap for gap in self._gaps if gap.start > 0])
