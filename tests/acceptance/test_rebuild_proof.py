"""The small form of `make rebuild-proof`: the same views after crashes, from nothing, and by a rebuild."""

import secrets

import pytest

from tests.conftest import IS_CI, NEEDS_APACHE
from tests.proof.report import differences
from tests.proof.run import FAULTS, prove
from tests.support.processes.services import choose_kafka

RECORDS = 4_000


async def test_the_views_are_the_same_however_they_were_made() -> None:
    choice = choose_kafka(is_must=IS_CI, is_own=True)
    if choice.kind != "apache":
        pytest.skip(f"{NEEDS_APACHE}: {choice.reason}")
    seed = secrets.randbelow(1_000_000)
    proof = await prove(RECORDS, seed)
    assert differences(proof) == [], f"seed {seed}"
    assert sum(proof.faults.values()) == len(FAULTS)
    assert proof.checksums["crashes"]["events"][0] > RECORDS * 0.99
