"""Which bytes a `Range` header asks for (RFC 9110, section 14). Pure.

One range of bytes is supported, which is what clients that resume a download send.
"""

import re
from typing import NamedTuple

_RANGE = re.compile(r"bytes=\s*(\d{0,18})-(\d{0,18})\s*", re.ASCII | re.IGNORECASE)


class ByteRange(NamedTuple):
    """Bytes from `first` up to, and not including, `end`."""

    first: int
    end: int

    def content_range(self, size: int) -> str:
        """Return the value of the header Content-Range of a 206."""
        return f"bytes {self.first}-{self.end - 1}/{size}"


class Unsatisfiable(NamedTuple):
    """A range that lies behind the end."""

    size: int

    def content_range(self) -> str:
        """Return the value of the header Content-Range of a 416."""
        return f"bytes */{self.size}"


def range_of(header: str | None, if_range: str | None, etag: str, size: int) -> ByteRange | Unsatisfiable | None:
    """Return the range; None means the whole. The RFC gives no reason to refuse several ranges, other units or
    malformed headers: they mean the whole.
    """
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
