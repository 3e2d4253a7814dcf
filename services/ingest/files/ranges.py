"""Which bytes a `Range` header asks for (RFC 9110, section 14). Pure."""

import re
from typing import NamedTuple

_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII | re.IGNORECASE)


class ByteRange(NamedTuple):
    """From the first up to, not including, the end."""

    first: int
    end: int

    def content_range(self, size: int) -> str:
        return f"bytes {self.first}-{self.end - 1}/{size}"


class Unsatisfiable(NamedTuple):
    size: int

    def content_range(self) -> str:
        return f"bytes */{self.size}"


def range_of(header: str | None, if_range: str | None, etag: str, size: int) -> ByteRange | Unsatisfiable | None:
    """None: the whole. Several ranges, other units and what is malformed are no reason to refuse, says the RFC."""
    match = None if header is None else _RANGE.fullmatch(header)
    if match is None or (if_range is not None and if_range != etag):
        return None
    first, last = match[1], match[2]
    if not first and not last:
        return None
    if not first:
        wanted = int(last)
        return ByteRange(max(0, size - wanted), size) if wanted and size else Unsatisfiable(size)
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        return Unsatisfiable(size)
    return ByteRange(int(first), min(size, int(last) + 1) if last else size)
