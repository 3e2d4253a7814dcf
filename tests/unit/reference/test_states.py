from reference.states import PAGE, diagram, page
from schemas.events import TurnEnded, TurnStarted


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run python -m reference.states"


def test_a_diagram_has_an_arrow_for_each_pair_of_statuses() -> None:
    changes = {(None, TurnStarted): frozenset({"open"}), ("open", TurnEnded): frozenset({"ended"})}
    assert diagram(changes, "ended").splitlines()[1:-1] == [
        "stateDiagram-v2",
        "    [*] --> open: turn.started",
        "    open --> ended: turn.ended",
        "    ended --> [*]",
    ]
