"""Old versions are read as the newest. No released event has a second version, so the chain is shown on an example: a
deployment whose target was first one text, then a list, then a list of objects.
"""

from pathlib import Path
from typing import ClassVar

import pytest

from schemas import codec
from schemas.codec import Record, decode, encode
from schemas.config import Frozen
from schemas.events import BY_KIND, Event
from schemas.upcasters import UPCASTERS, Data, Upcasters, upcast
from tests.support.recorded.histories import KEY, START_MS

GOLDEN = Path(__file__).parents[2] / "golden" / "upcasting"


class Target(Frozen):
    host: str
    weight: int = 1


class Deployed(Event):
    kind = "example.deployed"
    version: ClassVar[int] = 3
    identity = ("release",)
    release: str
    targets: tuple[Target, ...]


def _one_target_to_list(data: Data) -> Data:
    return {"release": data["release"], "targets": [data["target"]]}


def _hosts_to_objects(data: Data) -> Data:
    targets = data["targets"]
    assert isinstance(targets, list)
    return data | {"targets": [{"host": host} for host in targets]}


EXAMPLE: Upcasters = {
    ("example.deployed", 1): _one_target_to_list,
    ("example.deployed", 2): _hosts_to_objects,
}
NEWEST = Deployed(release="r1", targets=(Target(host="a"),))


@pytest.fixture(autouse=True)
def example_is_known(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(BY_KIND, Deployed.kind, Deployed)
    monkeypatch.setitem(codec._NEWEST, "dev.threadlog.example.deployed.v3", Deployed)


def read(version: int, value: bytes, upcasters: Upcasters = EXAMPLE) -> Record:
    newest = encode(KEY, NEWEST, source="t", actor="service:t", time_ms=START_MS)
    headers = dict(newest.headers) | {
        "ce_type": f"dev.threadlog.example.deployed.v{version}".encode(),
        "ce_datahash": codec.sha256(value).hexdigest().encode(),  # type: ignore[attr-defined]  # the name that the module uses
    }
    record = decode(KEY.to_bytes(), tuple(headers.items()), value, 0, upcasters=upcasters)
    assert isinstance(record, Record)
    return record


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_is_read_as_the_newest(version: int):
    value = (GOLDEN / f"example.deployed.v{version}.json").read_bytes().strip()
    record = read(version, value)
    assert record.data == NEWEST
    assert record.kind == "example.deployed"
    assert record.data_hash == codec.sha256(value).hexdigest()  # type: ignore[attr-defined]  # the name that the module uses


def test_a_newer_version_is_ignored():
    record = read(4, b"{}")
    assert record.problem is not None and not record.problem.understood


@pytest.mark.parametrize(
    "value",
    [
        b"{}",
        b"[]",
        b"7",
        b"{",
        b'{"release":"r1","target":7}',
        b'{"release":1,"target":"a"}',
        b'{"release":"r1","targets":7}',
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_old_data_that_does_not_fit_is_explained(version: int, value: bytes):
    problem = read(version, value).problem
    assert problem is not None and problem.understood
    assert f"example.deployed v{version}" in problem.reason


def test_a_hole_in_the_chain_is_explained():
    problem = read(1, b'{"release":"r1","target":"a"}', {}).problem
    assert problem is not None and problem.understood
    with pytest.raises(KeyError):
        upcast("example.deployed", 1, 3, {}, {})


def test_there_is_an_upcaster_for_every_old_version_and_no_other():
    released = [event for event in BY_KIND.values() if event is not Deployed]
    assert set(UPCASTERS) == {(event.kind, version) for event in released for version in range(1, event.version)}


def test_nothing_is_done_to_the_newest():
    assert upcast("any.kind", 2, 2, {"a": 1}) == {"a": 1}
