"""Which artifacts a record names; all kinds of mention are in `tests/contract/test_views.py`."""

from schemas.events import ArtifactRecorded, ThreadClosed
from services.projector.projections.artifacts import Named, named_in
from tests.support.recorded.histories import NO_HASH


def test_a_record_that_names_none_names_none():
    assert named_in(ThreadClosed()) == []
    assert named_in(None) == []


def test_a_recorded_one_is_named():
    recorded = ArtifactRecorded(sha256=NO_HASH, size=3, media_type="text/plain", name="a")
    assert named_in(recorded) == [Named("recorded", NO_HASH, "a", 3, "text/plain")]
