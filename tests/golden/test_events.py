"""Every version of every event: an example that decodes, a schema that its model has. `python -m reference.events`
writes schemas and `docs/events.md`; `python -m reference.events release` freezes what has been released.
"""

import json

import jsonschema
import pytest

from reference import events as reference
from reference.events import fingerprints, json_schema
from schemas.canonical import canonical_json, data_hash
from schemas.codec import Record, decode
from schemas.events import EVENTS, TYPE_PREFIX, Event
from schemas.ids import derive
from tests.support.recorded.histories import KEY

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
    assert written == json_schema(event), "run python -m reference.events"
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
