"""Every version of every event: an example that decodes, a schema that its model has. `python -m schemas.reference`
writes schemas and `docs/events.md`; `python -m schemas.reference release` freezes what has been released.
"""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from schemas import reference
from schemas.canonical import canonical_json, data_hash
from schemas.codec import Record, decode
from schemas.events import EVENTS, TYPE_PREFIX, Event, cloudevents_type
from schemas.ids import derive
from schemas.reference import event_reference, fingerprints, json_schema, read_examples
from tests.support.histories import KEY

FOLDER = reference.ROOT / "schemas" / "json"
VERSIONS = sorted(path.name.removesuffix(".example.json") for path in FOLDER.glob("*.example.json"))


def read(version: str) -> Record:
    value = canonical_json(json.loads((FOLDER / f"{version}.example.json").read_text()))
    headers = {
        "ce_specversion": b"1.0",
        "ce_id": derive(version).encode(),
        "ce_source": b"golden",
        "ce_type": f"{TYPE_PREFIX}{version}".encode(),
        "ce_time": b"2026-09-21T14:13:20.000Z",
        "content-type": b"application/json",
        "ce_actor": b"service:golden",
        "ce_datahash": data_hash(value).encode(),
    }
    record = decode(KEY.to_bytes(), tuple(headers.items()), value, 0)
    assert isinstance(record, Record)
    return record


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_decodes(version: str):
    record = read(version)
    assert record.problem is None
    assert record.data is not None
    assert record.kind == record.data.kind


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_the_newest_example_is_whole(event: type[Event]):
    """It names every field that the model has, and reads back as it is written."""
    version = f"{event.kind}.v{event.version}"
    example = json.loads((FOLDER / f"{version}.example.json").read_text())
    data = read(version).data
    assert data is not None
    assert json.loads(data.model_dump_json(exclude_none=True)) == example
    assert set(example) == set(event.model_fields)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_the_schema_is_that_of_the_model(event: type[Event]):
    version = f"{event.kind}.v{event.version}"
    written = (FOLDER / f"{version}.schema.json").read_text()
    assert written == json_schema(event), "run python -m schemas.reference"
    example = json.loads((FOLDER / f"{version}.example.json").read_text())
    jsonschema.validate(example, json.loads(written), jsonschema.Draft202012Validator)


def test_every_version_has_both_files():
    schemas = sorted(path.name.removesuffix(".schema.json") for path in FOLDER.glob("*.schema.json"))
    assert schemas == VERSIONS
    assert {f"{event.kind}.v{event.version}" for event in EVENTS} <= set(VERSIONS)


def test_what_is_released_is_frozen():
    frozen = json.loads((FOLDER / "released.json").read_text())
    found = fingerprints(FOLDER)
    changed = [version for version, fingerprint in frozen.items() if found.get(version) != fingerprint]
    assert changed == [], "a released version never changes: make a new version and an upcaster"


def test_the_reference_is_up_to_date():
    written = (reference.ROOT / "docs" / "events.md").read_text()
    assert written == event_reference(read_examples(FOLDER)), "run python -m schemas.reference"


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
    assert set(frozen) == set(VERSIONS)
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
