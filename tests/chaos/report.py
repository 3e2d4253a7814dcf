"""The table and chaos.json."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.chaos.ledger import CLASSES
from tests.chaos.system import LEASE_SECONDS

RESTARTED_MS_MAX: Final = 3_000
GONE_MS_MAX: Final = 10_000
"""Limits of p50 in a calm system, to which a lease is added where one has to run out. They are told, not judged: what a
machine is busy with besides takes the same cores."""
COLUMNS: Final = ("executed", "doubled", "unknown", "falsely_unknown", "falsely_certain")


def percentiles_ms(seconds: Iterable[float]) -> dict[str, int | None]:
    """p50, p99 and max; None where there is nothing to measure."""
    ordered = sorted(seconds)
    if not ordered:
        return {"p50": None, "p99": None, "max": None}

    def at(share: float) -> int:
        return round(1000 * ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)])

    return {"p50": at(0.5), "p99": at(0.99), "max": round(1000 * ordered[-1])}


def violations(result: Mapping[str, Any]) -> list[str]:
    """What must be zero, or true, and is not."""
    zeros = {
        "inputs lost": result["inputs"]["lost"],
        "turns that ended twice": result["turns"]["ended_twice"],
        "threads still open": result["turns"]["open"],
        "gaps that clients saw": result["clients"]["gaps"],
        "repeats that clients saw": result["clients"]["repeats"],
        "answers that contradict earlier ones": result["contradictions"],
    }
    for effect, counts in result["calls"].items():
        zeros[f"{effect} calls falsely certain"] = counts["falsely_certain"]
        if effect != "pure":
            zeros[f"{effect} effects doubled"] = counts["doubled"]
    found = [f"{count} {what}" for what, count in zeros.items() if count]
    return found if result["views_equal"] else [*found, "the views differ from a fresh fold"]


def table(result: Mapping[str, Any]) -> list[str]:
    faults, calls = result["faults"], result["calls"]
    lines = [
        (
            f"{result['seconds']:.0f} s of faults, then {result['settle_seconds']:.1f} s until all had settled; "
            f"seed {result['seed']}; {result['kafka_version']}, {result['postgres_version']}"
        ),
        "",
        f"faults      {sum(faults.values())}: " + ", ".join(f"{name} {count}" for name, count in faults.items()),
        f"            SIGKILL {result['kills']}, SIGSTOP {result['stops']}",
        f"inputs      acknowledged {result['inputs']['acknowledged']}, lost {result['inputs']['lost']}",
        (
            f"turns       ended {result['turns']['ended']}, ended twice {result['turns']['ended_twice']}, "
            f"still open {result['turns']['open']} ({_listed(result['outcomes'])})"
        ),
        (
            f"clients     {result['clients']['streams']} streams over {result['clients']['connections']} connections, "
            f"gaps {result['clients']['gaps']}, repeats {result['clients']['repeats']}"
        ),
        (
            f"views       {'equal to' if result['views_equal'] else 'DIFFERENT from'} a fresh fold of "
            f"{result['records']} records"
        ),
        "",
        "calls        " + "".join(f"{column.replace('_', ' '):>17}" for column in COLUMNS),
    ]
    lines += [f"{effect:<13}" + "".join(f"{calls[effect][column]:>17}" for column in COLUMNS) for effect in CLASSES]
    lines += ["", *_progress_lines("progress after a kill, under chaos", result["progress_ms_by_victim"])]
    if result.get("calm_progress_ms"):
        lines += ["", *_progress_lines("progress after a single kill in a calm system", result["calm_progress_ms"])]
        lines += [f"  ! {problem}" for problem in [*result["calm_problems"], *late(result["calm_progress_ms"])]]
    return lines


def late(rows: Mapping[str, Mapping[str, int | None]]) -> list[str]:
    """Which p50 of a single kill is over its limit."""
    found = []
    for name, row in rows.items():
        limit = RESTARTED_MS_MAX if name.endswith("restarted") else GONE_MS_MAX
        if ", lease" in name:
            limit += 1000 * LEASE_SECONDS
        if row["p50"] is not None and row["p50"] > limit:
            found.append(f"{name}: p50 is over {limit} ms")
    return found


def _progress_lines(title: str, rows: Mapping[str, Mapping[str, int | None]]) -> Sequence[str]:
    width = max([len(title), *[len(name) for name in rows]])
    lines = [f"{title:<{width}}" + "".join(f"{column:>12}" for column in ("p50 ms", "p99 ms", "max ms", "samples"))]
    for name, row in rows.items():
        cells = [row["p50"], row["p99"], row["max"], row["samples"]]
        lines.append(f"{name:<{width}}" + "".join(f"{'-' if cell is None else cell:>12}" for cell in cells))
    return lines


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
