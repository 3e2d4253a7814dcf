"""A conversation in fewer characters, for a model that could not take the whole of it: pure.

It is told as one text: no provider then misses the result of a call, or the signature of an answer, that was left out.
Of its parts the longest are cut, to one length that all share, so what people said mostly stays as it was and what
tools gave does not. Where that is not enough, what lies between the first part and the newest is left out.
"""

import json
from collections.abc import Sequence

from services.runtime.models.port import TranscriptItem, text_of_content, text_of_summary

PART_CHARACTERS_MIN = 200
"""No part is cut to less: rather are some left out."""

HEADING = "The conversation is too long to be shown as it was. Its parts, the longest of them cut:"


def truncated(items: Sequence[TranscriptItem], halvings: int) -> str:
    """In about so many halves of what it would have, and the heading."""
    parts = [part for item in items if (part := _part(item)) is not None]
    room = sum(map(len, parts)) >> halvings
    most = max(PART_CHARACTERS_MIN, _shared_length([len(part) for part in parts], room))
    return "\n\n".join([HEADING, *_within([_cut(part, most) for part in parts], room)])


def _part(item: TranscriptItem) -> str | None:
    """None for what the model only thought."""
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
            return f"{item.get('tool')} came to {item.get('outcome')}: {text_of_content(item.get('content'))}"


def _shared_length(lengths: Sequence[int], room: int) -> int:
    """The most that each may have at most, so that all have room: those that are shorter leave theirs to the others."""
    left, sharing = room, len(lengths)
    for length in sorted(lengths):
        if length * sharing > left:
            return left // sharing
        left, sharing = left - length, sharing - 1
    return room


def _cut(text: str, most: int) -> str:
    """Its beginning and its end."""
    if len(text) <= most:
        return text
    note = f" [… {len(text) - most} characters are left out …] "
    head = (most - len(note)) // 2
    return f"{text[:head]}{note}{text[len(text) - (most - len(note) - head) :]}"


def _within(parts: Sequence[str], room: int) -> Sequence[str]:
    """The first of them, which is what it began with or a summary, and the newest that have room."""
    first, rest = parts[:1], parts[1:]
    left, newest = room - sum(map(len, first)), len(rest)
    while newest > 0 and len(rest[newest - 1]) <= left:
        newest -= 1
        left -= len(rest[newest])
    return parts if newest == 0 else [*first, f"[{newest} parts are left out]", *rest[newest:]]
