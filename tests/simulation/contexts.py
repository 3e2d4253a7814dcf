"""What a thread showed as of one of its records, by the log alone: everything folded from the beginning, each time."""

from collections.abc import Mapping

from schemas.events import Lineage
from schemas.ids import ThreadId, ThreadKey
from schemas.state import NOTHING
from schemas.transcript import Item, Transcript, inherited, transcript_changes
from tests.support.worlds.services import Judged

Threads = Mapping[ThreadKey, Judged]


def context_at(threads: Threads, key: ThreadKey, seq: int) -> list[Item]:
    thread = threads[key]
    transcript = Transcript(inherited=inherited_by(threads, key, thread.state.lineage))
    before = NOTHING
    for record, verdict, after in thread.records[:seq]:
        transcript.apply(transcript_changes(before, after, record, verdict))
        before = after
    return transcript.context()


def inherited_by(threads: Threads, key: ThreadKey, lineage: Lineage | None) -> tuple[Item, ...] | None:
    """What a fork shows before its own; None for what is no fork."""
    if lineage is None or lineage.kind != "fork":
        return None
    parent = ThreadKey(key.tenant, ThreadId(lineage.parent))
    return inherited(lineage.parent, context_at(threads, parent, lineage.seq))
