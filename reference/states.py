"""The lives of turns and calls (`docs/states.md`), drawn from `schemas.state` by `python -m reference.states`.

A test compares the page with the tables, and another one compares the tables with the fold.
"""

from pathlib import Path
from typing import Final

from schemas.state import CALL_CHANGES, TURN_CHANGES, Changes

PAGE: Final = Path(__file__).parents[1] / "docs" / "states.md"

INTRODUCTION: Final = """# The lives of turns and calls

Drawn from the tables of [schemas/state.py](../schemas/state.py), which a property test holds against the fold: no
history shows another change, and each of these can happen. Whether an event fits is decided from more than a status
(hashes, attempts, claims); [events.md](events.md) says it for each event.

"""
TURNS: Final = """## A turn

A turn is open from its start to its end. Once it is being cancelled nothing of it starts again: calls that did not run
are settled, calls that run may still finish, and then the turn ends as aborted.

"""
CALLS: Final = """
## A tool call

A call waits for a decision, is dispatched to a pool of executors, is claimed by one of them and runs. `repeatable` is a
call whose last attempt had no effect or may be run again; it is dispatched once more. `unknown` is a call that may have
had its effect: a late result, the downstream or a person settles it. A settled call has an outcome and never changes.

"""


def diagram(changes: Changes, last: str) -> str:
    """Return a Mermaid state diagram. Every pair of statuses is one arrow, labelled with the events that cause it."""
    causes: dict[tuple[str, str], list[str]] = {}
    for (before, event), after in changes.items():
        for status in sorted(after):
            causes.setdefault((before or "[*]", status), []).append(event.kind)
    lines = [f"    {before} --> {after}: {', '.join(kinds)}\n" for (before, after), kinds in causes.items()]
    return "".join(["```mermaid\n", "stateDiagram-v2\n", *lines, f"    {last} --> [*]\n", "```\n"])


def page() -> str:
    return INTRODUCTION + TURNS + diagram(TURN_CHANGES, "ended") + CALLS + diagram(CALL_CHANGES, "settled")


if __name__ == "__main__":
    PAGE.write_text(page())
