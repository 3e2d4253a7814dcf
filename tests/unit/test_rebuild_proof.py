"""That the proof would tell what it must: a history without something, and views that are not the same."""

from collections import Counter

from tests.proof.bad_records import BAD_KINDS
from tests.proof.history import Expected, history
from tests.proof.report import WAYS, differences, tables
from tests.proof.run import Proof


def proved(seed: int = 1) -> Proof:
    """What a run finds where everything is as it must be."""
    proof = Proof(seed, "Kafka", "Postgres")
    assert len(list(history(3_000, seed, proof.expected))) == proof.expected.records >= 3_000
    for way in WAYS:
        proof.checksums[way] = {"events": (3, "123"), "threads": (1, "5")}
        proof.effects[way] = dict(proof.expected.effects)
        proof.dead_letters[way] = proof.expected.dead_letters
        proof.seconds[way] = 2.0
    return proof


def test_a_history_has_every_event_every_effect_and_every_bad_record() -> None:
    for seed in range(3):
        proof = proved(seed)
        assert differences(proof) == []
        assert set(proof.expected.bad) == set(BAD_KINDS)


def test_a_seed_gives_the_same_history() -> None:
    assert list(history(500, 7, Expected())) == list(history(500, 7, Expected()))
    assert list(history(500, 7, Expected())) != list(history(500, 8, Expected()))


def test_other_checksums_other_effects_and_missing_dead_letters_are_told() -> None:
    proof = proved()
    proof.checksums["rebuild"] = {"events": (3, "124"), "threads": (1, "5")}
    proof.effects["restart"] = Counter(proof.effects["restart"]) - Counter({("turn.ended", "applied"): 1})
    proof.dead_letters["crashes"] -= 1
    found = differences(proof)
    assert len(found) == 3
    assert any(line.startswith("events after rebuild") for line in found)
    assert any(line.startswith("restart: ") and "turn.ended" in line for line in found)
    assert any(line.startswith("crashes: ") and "dead letters" in line for line in found)
    assert [line for line in tables(proof) if line.endswith("DIFFERENT")] == [
        line for line in tables(proof) if line.startswith("events ")
    ]


def test_what_a_history_lacks_is_told() -> None:
    proof = proved()
    del proof.expected.bad["huge"]
    del proof.expected.effects["thread.rewound", "applied"]
    proof.effects = {way: dict(proof.expected.effects) for way in WAYS}
    assert differences(proof) == ["the history has no thread.rewound", "the history has no huge"]
