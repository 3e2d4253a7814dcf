"""A conversation in fewer characters, for a model that could not take all of it. Pure.

It becomes one text. As separate messages it would be refused: providers miss the result of a call, or the signature of
an answer, that was left out. The longest parts are cut to one common length, so what people said mostly stays whole and
long output of tools does not. If that is not enough, parts between the first and the newest ones are left out: the
first says what the work is about, the newest where it stands.
"""

import json
from collections.abc import Sequence

from services.runtime.models.port import TranscriptItem, text_of_content, text_of_summary

PART_CHARACTERS_MIN = 200
"""Characters that a part keeps at least. Shorter parts say nothing, so parts are left out instead."""

HEADING = "The conversation is too long to be shown as it was. Its parts, the longest of them cut:"


def truncated(items: Sequence[TranscriptItem], halvings: int) -> str:
    """Return the conversation as text, cut in half `halvings` times. Parts that stay may make it somewhat longer."""
    parts = [part for item in items if (part := _part(item)) is not None]
    room = sum(map(len, parts)) >> halvings
    most = max(PART_CHARACTERS_MIN, _shared_length([len(part) for part in parts], room))
    return "\n\n".join([HEADING, *_within([_cut(part, most) for part in parts], room)])


def _part(item: TranscriptItem) -> str | None:
    """Return an item as text; None for reasoning, which nobody needs to sum up."""
    match item["kind"]:
        case "message":
            who = "You said" if item.get("role") == "assistant" else "The user said"
            return f"{who}: {text_of_content(item.get('content'))}"
        case "reasoning":
            return None
        case "tool_call":
            args = item.get("malformed") or json.dumps(item.get("args"), ensure_ascii=False)
            return f"You called {item.get('tool')} with {args}"
        case "summary":
            return text_of_summary(item)
        case _:
            return f"{item.get('tool')} returned ({item.get('outcome')}): {text_of_content(item.get('content'))}"


def _shared_length(lengths: Sequence[int], room: int) -> int:
    """Return the greatest length to which parts can be cut so that all fit; short parts leave their share to others."""
    left, sharing = room, len(lengths)
    for length in sorted(lengths):
        if length * sharing > left:
            return left // sharing
        left, sharing = left - length, sharing - 1
    return room


def _cut(text: str, most: int) -> str:
    """Return the beginning and the end of a text, with a note of how much is left out between them."""
    if len(text) <= most:
        return text
    note = f" [… {len(text) - most} characters are left out …] "
    head = (most - len(note)) // 2
    return f"{text[:head]}{note}{text[len(text) - (most - len(note) - head) :]}"


def _within(parts: Sequence[str], room: int) -> Sequence[str]:
    """Return the first part and as many of the newest as fit. The first is the beginning, or an earlier summary."""
    first, rest = parts[:1], parts[1:]
    left, newest = room - sum(map(len, first)), len(rest)
    while newest > 0 and len(rest[newest - 1]) <= left:
        newest -= 1
        left -= len(rest[newest])
    return parts if newest == 0 else [*first, f"[{newest} parts are left out]", *rest[newest:]]
