"""What the model sees of a thread. Pure functions over the transcript."""

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.events import Context
from schemas.transcript import Change, Item, Transcript, context_hash


@dataclass(frozen=True, slots=True)
class Window:
    """The items of a context, and what `step.started` records of them."""

    items: Sequence[Item]
    context: Context


def window(transcript: Transcript, ahead: Sequence[Change], confirmed_seq: int) -> Window:
    """Return the context as of the confirmed transcript and the changes of own events that are not read back yet.

    `confirmed_seq` is the seq of the last record that was read back. It goes into the event together with a hash of the
    items: whoever verifies a thread can rebuild exactly what the model was shown.
    """
    shown = transcript
    if ahead:
        shown = transcript.copy()
        shown.apply(tuple(ahead))
    items = shown.context()
    return Window(items, Context(confirmed_seq=confirmed_seq, items=len(items), hash=context_hash(items)))
