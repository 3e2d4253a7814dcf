"""Parts of a tool's result that do not fit an event: whole outputs, images.

They are put into the artifact store before the event that names them is appended, so that no event names what is not
there. The result itself shows their head and tail, or a line in their place.
"""

import hashlib
import io
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Final, TypeAlias

from services.chassis.artifacts.store import PIECE_BYTES, sha256_of
from services.chassis.sanitize import sanitize_text
from services.tool_executor.output import INLINE_BYTES_MAX

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
STORE_SECONDS: Final = 30.0
"""How long the artifact store may take for what one call needs of it. A person waits for the call meanwhile: after this
time a result goes out shortened, a file stays unchanged, and a skill is not restored.
"""


@dataclass(frozen=True, slots=True)
class Attachment:
    """One piece of content on its way to the artifact store."""

    content: "bytes | Spool"
    media_type: str
    name: str
    is_output: bool = True
    """Whether the result shows its head and tail, so that the model is told how to read the rest.

    False for content with a line of its own in the result, such as an image: the model is then told about it again
    only if it could not be stored.
    """

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.size

    @property
    def sha256(self) -> str:
        return sha256_of(self.content) if isinstance(self.content, bytes) else self.content.sha256

    @property
    def left_out(self) -> int:
        """Bytes of the output beyond the limit, which were dropped."""
        return 0 if isinstance(self.content, bytes) else self.content.left_out


Attachments: TypeAlias = tuple[Attachment, ...]


class Spool:
    """An output of any length, written to a temporary file and hashed while it arrives.

    Bytes beyond the limit are counted and dropped. A disk that is full must not end a command that runs: the error is
    remembered, nothing is stored in the end, and `pieces` raises it.
    """

    def __init__(self, bytes_max: int) -> None:
        self.size = 0
        self.left_out = 0
        self._bytes_max = bytes_max
        self._digest = hashlib.sha256()
        self._failed: OSError | None = None
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # it ends with the spool
        except OSError as error:
            self._file, self._failed = io.BytesIO(), error
        self._close = weakref.finalize(self, self._file.close)

    def add(self, chunk: bytes) -> None:
        kept = chunk[: max(0, self._bytes_max - self.size)]
        self.left_out += len(chunk) - len(kept)
        self.size += len(kept)
        self._digest.update(kept)
        self._write(kept)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while self._failed is None and view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._failed = error

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def pieces(self) -> Iterator[bytes]:
        """Yield the content from its beginning. Raises the OSError that writing met, if any."""
        if self._failed is not None:
            raise self._failed
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    def close(self) -> None:
        self._close()


def whole_text(text: str, name: str = "output.txt", bytes_max: int = INLINE_BYTES_MAX) -> Attachments:
    """Return the text as an attachment if its result has to cut it, else nothing.

    A character takes at most four bytes, so a short text is known to fit without being encoded.
    """
    if len(text) <= bytes_max // 4 or len(encoded := sanitize_text(text).encode()) <= bytes_max:
        return ()
    return (Attachment(encoded, TEXT, name),)
