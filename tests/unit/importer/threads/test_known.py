"""What a thread shares with another, and how a turn is named that has lost its prompt."""

import pytest

from schemas.events import Lineage
from schemas.ids import TenantId, ThreadId, ThreadKey
from services.importer.model import Origin, Turn
from services.importer.threads.known import Base, KnownTurn, Place, input_id, input_ids

PARENT, GRANDPARENT = (ThreadKey(TenantId("acme"), ThreadId(name)) for name in ("parent", "grandparent"))
SHARED = (
    (GRANDPARENT, KnownTurn(1, ("a",), Place(5))),
    (GRANDPARENT, KnownTurn(2, ("b",), Place(9))),
    (PARENT, KnownTurn(1, ("c",), Place(4))),
    (PARENT, KnownTurn(2, ("d",), Place(8))),
)


@pytest.mark.parametrize(
    ("parent", "seq", "turns"),
    [
        ("parent", 8, 4),
        ("parent", 4, 3),
        ("grandparent", 9, 2),
        ("grandparent", 5, 1),
        ("parent", 5, 3),
        ("parent", 3, 2),
    ],
)
def test_the_turns_that_a_fork_shares(parent: str, seq: int, turns: int) -> None:
    lineage = Lineage(kind="fork", parent=ThreadId(parent), seq=seq, chain="0" * 64, depth=1)
    assert Base(PARENT, SHARED).through(lineage) == SHARED[:turns]


def test_a_turn_without_its_prompt_is_named_after_itself() -> None:
    turn = Turn("t1", (), (), "completed", "recorded", Origin(1))
    assert input_ids("codex", turn) == (input_id("codex", "turn t1"),)
