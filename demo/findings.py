"""The demo shows what it checked as a table."""

from collections.abc import Sequence
from typing import NamedTuple

NOT_TESTED = "– was not put to the test: the model decides how its session goes, and there was no occasion for it."


class Finding(NamedTuple):
    claim: str
    found: str
    holds: bool | None
    """None: a real model did not bring it about, so it was not put to the test."""


def holding(found: Sequence[Finding]) -> bool:
    return all(finding.holds is not False for finding in found)


def table(found: Sequence[Finding]) -> str:
    marks = {True: "✓", False: "✗", None: "–"}
    width = max(len(finding.claim) for finding in found)
    lines = [f"{marks[finding.holds]} {finding.claim:<{width}}  {finding.found}" for finding in found]
    if any(finding.holds is None for finding in found):
        lines.append(NOT_TESTED)
    return "\n" + "\n".join(lines) + "\n"
