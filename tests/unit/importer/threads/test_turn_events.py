"""A turn of a session as events."""

from schemas.events import AnswerText, StepFinished, TextItem
from services.importer.model import Header, Input, Origin, Step, Turn
from tests.support.worlds.imports import ImportWorld

HERE = Origin(1)


def test_an_id_of_a_response_is_no_longer_than_an_index_takes() -> None:
    step = Step("s", HERE, items=(AnswerText(text="yes"),), response_id="漢" * 9_000)
    asked = Input("i", (TextItem(text="go"),), HERE)
    turn = Turn("t", (asked,), (step,), "completed", "recorded", HERE)
    log = ImportWorld().run([Header("codex", "s1", HERE), turn])
    [finished] = [record.data for record, _, _ in log.records if isinstance(record.data, StepFinished)]
    assert finished.response_id == "漢" * 128
