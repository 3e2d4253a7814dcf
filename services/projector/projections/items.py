"""The rows of the view `items`: the conversation of a thread, item by item.

`schemas.transcript` decides what a record changes in the conversation; this module only puts that into rows. The
runtime reads its context from these rows with the same rules, so both see the same conversation.
"""

from collections.abc import Iterator
from typing import assert_never

from schemas.state import QueuedInput
from schemas.transcript import (
    CallEdited,
    Compacted,
    Forked,
    InputDropped,
    InputTaken,
    Item,
    ItemAdded,
    Rewound,
    transcript_changes,
)
from services.projector.projections.changes import (
    Applied,
    CallItemEdited,
    Change,
    ChangedRow,
    Columns,
    ItemsCompacted,
    ItemsRewound,
    NewRow,
    given,
    json_bytes,
)


def item_changes(applied: Applied) -> Iterator[Change]:
    """Yield what the record changes in the rows of items, in the order of the transcript's changes."""
    record, before, after, verdict = applied
    key = record.key
    for change in transcript_changes(before, after, record, verdict):
        match change:
            case Forked():
                pass  # inherited items stay rows of the parent, and are read there
            case ItemAdded(item):
                yield _added(applied, item)
            case InputTaken() as taken:
                # The latest submission is the one that is taken.
                seq = _submissions(before.queue, taken.input)[-1]
                columns = given(turn=taken.turn, step=taken.step, place=taken.place)
                yield ChangedRow("items", (*key, seq, 0), columns)
            case InputDropped(name, reason):
                for seq in _submissions(before.queue, name):
                    yield ChangedRow("items", (*key, seq, 0), {"dropped": reason})
            case Rewound(to_turn, seq):
                yield ItemsRewound(*key, to_turn, seq)
            case Compacted(through_seq, seq):
                yield ItemsCompacted(*key, through_seq, seq)
            case CallEdited(call, args):
                yield CallItemEdited(*key, before.calls[call].seq, call, json_bytes(args))
            case _:
                assert_never(change)


def _added(applied: Applied, item: Item) -> Change:
    columns: Columns = {
        "kind": item.kind,
        "turn": item.turn,
        "step": item.step,
        "place": item.place,
        "content": json_bytes(item.content),
        "digest": item.digest,
        "input": item.input,
        "call": item.call,
    }
    return NewRow("items", (*applied.record.key, item.seq, item.part), columns)


def _submissions(queue: tuple[QueuedInput, ...], name: str) -> list[int]:
    """Return the seqs at which the input was submitted: more than one only if its id was forgotten in between."""
    return [queued.seq for queued in queue if queued.input == name]
