"""The tables, and what is in the file."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

from schemas.thread import Effect
from tests.proof.run import Proof

WAYS = ("crashes", "restart", "rebuild")
EFFECTS = get_args(Effect)


def differences(proof: Proof) -> list[str]:
    """What is not as it must be; empty where the proof holds."""
    expected = proof.expected
    found = [f"the history has no {what}" for what in expected.missing()]
    for way in WAYS:
        for kind, effect in sorted(expected.effects.keys() | proof.effects[way].keys()):
            stored, wanted = proof.effects[way].get((kind, effect), 0), expected.effects[kind, effect]
            if stored != wanted:
                found.append(f"{way}: {stored} records of {kind} are {effect}, the history has {wanted}")
        if proof.dead_letters[way] != expected.dead_letters:
            found.append(f"{way}: {proof.dead_letters[way]} dead letters, the history has {expected.dead_letters}")
    first = proof.checksums[WAYS[0]]
    for way in WAYS[1:]:
        then = proof.checksums[way]
        found += [
            f"{view} after {way}: {then.get(view)}, with crashes: {first.get(view)}"
            for view in sorted(first.keys() | then.keys())
            if then.get(view) != first.get(view)
        ]
    return found


def rates(proof: Proof) -> dict[str, int]:
    """Records per second, start-up included."""
    return {way: round(proof.expected.records / seconds) for way, seconds in proof.seconds.items()}


def as_json(proof: Proof) -> dict[str, Any]:
    return {
        "records": proof.expected.records,
        "seed": proof.seed,
        "kafka_version": proof.kafka_version,
        "postgres_version": proof.postgres_version,
        "faults": dict(proof.faults),
        "bad_records": dict(proof.expected.bad),
        "effects": _by_kind(proof.expected.effects),
        "checksums": {
            way: {view: {"rows": rows, "checksum": checksum} for view, (rows, checksum) in views.items()}
            for way, views in proof.checksums.items()
        },
        "records_per_second": rates(proof),
        "seconds": {way: round(seconds, 1) for way, seconds in proof.seconds.items()},
        "differences": differences(proof),
    }


def tables(proof: Proof) -> list[str]:
    return [*_effects(proof.expected.effects), "", *_bad(proof), "", *_checksums(proof), "", *_rates(proof)]


def _by_kind(effects: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    by_kind: dict[str, dict[str, int]] = {}
    for (kind, effect), count in sorted(effects.items()):
        by_kind.setdefault(kind, {})[effect] = count
    return by_kind


def _effects(effects: Mapping[tuple[str, str], int]) -> list[str]:
    lines = [f"{'records':<36}" + "".join(f"{effect:>12}" for effect in EFFECTS)]
    sums: Counter[str] = Counter()
    for kind, row in _by_kind(effects).items():
        sums.update(row)
        lines.append(f"{kind:<36}" + "".join(f"{row.get(effect, 0) or '':>12}" for effect in EFFECTS))
    return [*lines, f"{'':<36}" + "".join(f"{sums[effect]:>12,}" for effect in EFFECTS)]


def _bad(proof: Proof) -> list[str]:
    counts = [f"{count} {kind}" for kind, count in sorted(proof.expected.bad.items())]
    faults = [f"{count} x {fault}" for fault, count in proof.faults.items()]
    return [f"bad records: {', '.join(counts)}", f"faults: {', '.join(faults)}"]


def _checksums(proof: Proof) -> list[str]:
    lines = [f"{'view':<16}{'rows':>10}" + "".join(f"{way:>20}" for way in WAYS)]
    for view, (rows, _) in proof.checksums[WAYS[0]].items():
        cells = [proof.checksums[way].get(view, (0, "0")) for way in WAYS]
        equal = "equal" if len(set(cells)) == 1 else "DIFFERENT"
        lines.append(f"{view:<16}{rows:>10,}" + "".join(f"{_short(sum_):>20}" for _, sum_ in cells) + f"  {equal}")
    return lines


def _short(checksum: str) -> str:
    return f"{int(checksum) % 2**64:016x}"


def _rates(proof: Proof) -> list[str]:
    said = {
        "crashes": "written and projected by two or three projectors, with crashes",
        "restart": "projected by one projector from nothing",
        "rebuild": "rebuilt beside the live views and swapped",
    }
    return [f"{rate:>8,} records/s {said[way]}, {proof.seconds[way]:.1f} s" for way, rate in rates(proof).items()]
