import json
import shutil
from pathlib import Path

import pytest

from reference import events as reference
from reference.events import event_reference, fingerprints, read_examples
from schemas.events import EVENTS, cloudevents_type

FOLDER = reference.ROOT / "schemas" / "json"


def test_the_reference_is_up_to_date():
    written = (reference.ROOT / "docs" / "events.md").read_text()
    assert written == event_reference(read_examples(FOLDER)), "run python -m reference.events"


def test_every_event_has_a_meaning():
    assert list(reference.MEANINGS) == [event.kind for event in EVENTS]


def test_a_release_freezes_what_is_not_frozen_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copytree(FOLDER, tmp_path / "schemas" / "json")
    (tmp_path / "docs").mkdir()
    folder = tmp_path / "schemas" / "json"
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    reference.main([])
    assert (tmp_path / "docs" / "events.md").read_text().startswith("# Events")
    (folder / "released.json").write_text('{"thread.closed.v1": {"example": "as it was", "schema": "as it was"}}')
    reference.main(["release"])
    frozen = json.loads((folder / "released.json").read_text())
    assert set(frozen) == {f"{event.kind}.v{event.version}" for event in EVENTS}
    assert frozen["thread.closed.v1"]["schema"] == "as it was"

    example = folder / "turn.ended.v1.example.json"
    example.write_text(example.read_text().replace('"interrupted"', '"failed"'))
    assert fingerprints(folder)["turn.ended.v1"] != frozen["turn.ended.v1"]
    schema = folder / "turn.recovered.v1.schema.json"
    words = json.loads(schema.read_text()) | {"description": "in other words"}
    schema.write_text(json.dumps(words))
    assert fingerprints(folder)["turn.recovered.v1"] == frozen["turn.recovered.v1"]


def test_types_name_kind_and_version():
    assert cloudevents_type(EVENTS[0]) == "dev.threadlog.thread.created.v1"
