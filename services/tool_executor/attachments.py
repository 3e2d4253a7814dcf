"""What of a tool's result does not fit an event: whole outputs, images. They go to the artifact store before the event
that names them; the result itself holds their head and tail, or a line in their place.
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
    content: "bytes | Spool"
    media_type: str
    name: str
    is_output: bool = True
    """Whether the result shows head and tail of it, so that the model is told how to read the rest. Of what has a line
    of its own in the result, the model is told only where it could not be kept.
    """

    @property
    def size(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.size

    @property
    def sha256(self) -> str:
        return sha256_of(self.content) if isinstance(self.content, bytes) else self.content.sha256

    @property
    def left_out(self) -> int:
        """Bytes that came after the most that is kept of an output."""
        return 0 if isinstance(self.content, bytes) else self.content.left_out


Attachments: TypeAlias = tuple[Attachment, ...]


class Spool:
    """An output of any length, in a temporary file, hashed as it comes; beyond the most it is counted and dropped. A
    file that takes no more ends no command: then nothing is kept, and `pieces` says so.
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
        """Raises OSError."""
        if self._failed is not None:
            raise self._failed
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    def close(self) -> None:
        self._close()


def whole_text(text: str, name: str = "output.txt", bytes_max: int = INLINE_BYTES_MAX) -> Attachments:
    """Of a text that its result cuts; nothing where it fits."""
    if len(text) <= bytes_max // 4 or len(encoded := sanitize_text(text).encode()) <= bytes_max:
        return ()
    return (Attachment(encoded, TEXT, name),)
