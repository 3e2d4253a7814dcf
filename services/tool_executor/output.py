"""Tool output in the size and form that an event may carry: its head and its tail, and how much was cut in between.

Head and tail, because the beginning of an output says what was done and the end says how it went. Text that is not
valid Unicode, or that Postgres cannot store, is replaced here, before it can spoil a record.
"""

import codecs
import json
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from services.chassis.sanitize import sanitize_json, sanitize_text

INLINE_BYTES_MAX: Final = 32_768
"""How much of an output the model sees by itself. About 8,000 tokens: enough for most outputs, and not so much that a
single careless command fills a context.
"""
MARKER_BYTES_MAX: Final = 64
"""Room for the line that says how much was cut."""


@dataclass(frozen=True, slots=True)
class Cut:
    text: str
    bytes_cut: int


class HeadTail:
    """Keeps the first and the last bytes of a stream of any length, in bounded memory."""

    def __init__(self, bytes_max: int = INLINE_BYTES_MAX) -> None:
        self._head_max = max(0, bytes_max - MARKER_BYTES_MAX) // 2
        self._tail_max = max(0, bytes_max - MARKER_BYTES_MAX - self._head_max)
        self._bytes_max = bytes_max
        self._head = bytearray()
        self._tail = bytearray()
        self.bytes_seen = 0

    def add(self, chunk: bytes) -> None:
        self.bytes_seen += len(chunk)
        room = self._bytes_max - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:] if room < len(chunk) else b""
        # Trimmed only now and then, so that a stream of small chunks does not move the tail at each.
        if len(self._tail) > 2 * self._bytes_max:
            del self._tail[: -self._bytes_max]

    def head(self) -> bytes:
        """Return the whole stream, as long as it is within the limit."""
        return bytes(self._head)

    def cut(self) -> Cut:
        """Return the stream as text, shortened in the middle if it is longer than the limit."""
        if self.bytes_seen <= self._bytes_max:
            return self._fitted(Cut(sanitize_text(bytes(self._head).decode(errors="replace")), 0))
        ending = bytes(self._tail[-self._tail_max :]) if self._tail_max else b""
        if len(ending) < self._tail_max:
            # Little came after the head was full: the rest of the tail is the head's own end.
            ending = (bytes(self._head[self._head_max :]) + ending)[-self._tail_max :]
        return self._fitted(_joined(bytes(self._head[: self._head_max]), ending, self.bytes_seen))

    def _fitted(self, cut: Cut) -> Cut:
        """Shorten the text again if the characters that replace unreadable bytes made it too long."""
        if len(cut.text.encode()) <= self._bytes_max:
            return cut
        again = cut_text(cut.text, self._bytes_max)
        return Cut(again.text, cut.bytes_cut + again.bytes_cut)


def cut_text(text: str, bytes_max: int = INLINE_BYTES_MAX) -> Cut:
    storable = sanitize_text(text)
    encoded = storable.encode()
    if len(encoded) <= bytes_max:
        return Cut(storable, 0)
    head_max = max(0, bytes_max - MARKER_BYTES_MAX) // 2
    tail_max = max(0, bytes_max - MARKER_BYTES_MAX - head_max)
    return _joined(encoded[:head_max], encoded[len(encoded) - tail_max :], len(encoded))


def text_result(text: str, is_error: bool = False, bytes_max: int = INLINE_BYTES_MAX, **more: JsonValue) -> JsonValue:
    """Return a result of one text; `more` are further members, such as `exit_code`."""
    cut = cut_text(text, bytes_max)
    return cut_result(cut, is_error, **more)


def cut_result(cut: Cut, is_error: bool = False, **more: JsonValue) -> JsonValue:
    return {
        "content": [{"type": "text", "text": cut.text}],
        "is_error": is_error,
        "bytes_cut": cut.bytes_cut,
        **more,
    }


def structured_result(
    texts: list[str], structured: object, is_error: bool = False, bytes_max: int = INLINE_BYTES_MAX
) -> JsonValue:
    """Return a result of several texts and a JSON value.

    The texts come first. A value that does not fit with them is left out and counted as cut. Texts that do not fit
    together are joined and cut.
    """
    storable = sanitize_json(structured)
    size = 0 if storable is None else len(json.dumps(storable, ensure_ascii=False).encode())
    texts = texts if texts or storable is None else [json.dumps(storable, ensure_ascii=False)]
    text_bytes = sum(len(sanitize_text(text).encode()) for text in texts)
    fits = storable is not None and text_bytes + size <= bytes_max
    bytes_cut = 0 if fits else size
    if text_bytes > bytes_max:
        cut = cut_text("\n".join(texts), bytes_max)
        texts, bytes_cut = [cut.text], bytes_cut + cut.bytes_cut
    content: list[JsonValue] = [{"type": "text", "text": sanitize_text(text)} for text in texts]
    result: dict[str, JsonValue] = {"content": content, "is_error": is_error, "bytes_cut": bytes_cut}
    return result | {"structured": storable} if fits else result


class LiveText:
    """Turns a stream of bytes into text for watchers, up to a limit.

    A character whose bytes arrive in two chunks waits for the second one. The limit protects the progress topic from a
    command that prints without end; the result is not affected.
    """

    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def text(self, chunk: bytes) -> str:
        if self._left <= 0:
            return ""
        shown = chunk[: self._left]
        self._left -= len(shown)
        text = sanitize_text(self._decoder.decode(shown))
        return text if self._left > 0 else f"{text}\n[… more output is not shown live …]\n"


def _joined(head: bytes, tail: bytes, bytes_seen: int) -> Cut:
    """Join head and tail at character boundaries, with the number of bytes between them."""
    starts = head[: len(head) - _broken_end(head)]
    ends = tail[_broken_start(tail) :]
    cut = bytes_seen - len(starts) - len(ends)
    first, last = (sanitize_text(part.decode(errors="replace")) for part in (starts, ends))
    return Cut(f"{first}\n[… {cut} bytes cut …]\n{last}", cut)


def _broken_start(data: bytes) -> int:
    """Return how many bytes at the start are the rest of a character (at most 3)."""
    return next((place for place, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)


def _broken_end(data: bytes) -> int:
    """Return how many bytes at the end are the beginning of a character (at most 3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 1 if byte < 0x80 else 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return back if length > back else 0
    return 0
