"""Text that is too long for an event: its head and tail stay, and the whole of it becomes an artifact."""

from dataclasses import dataclass, field
from hashlib import sha256

from pydantic import JsonValue

from schemas.events import Artifact
from services.importer.model import Blob

TEXT = "text/plain"


@dataclass(slots=True)
class Cutter:
    """A cutter shortens texts and collects the artifacts that have to be stored before the event that names them."""

    text_bytes_max: int
    """Longest text in bytes of UTF-8 that stays whole."""
    blobs: list[Blob] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)

    def keep(self, blob: Blob) -> Artifact:
        """Return the artifact for the content; equal contents are kept once."""
        artifact = Artifact(
            sha256=sha256(blob.content).hexdigest(),
            size=len(blob.content),
            media_type=blob.media_type,
            name=blob.name,
        )
        if all(kept.sha256 != artifact.sha256 for kept in self.artifacts):
            self.blobs.append(blob)
            self.artifacts.append(artifact)
        return artifact

    def cut(self, text: str) -> str:
        """Return the text, or its head and tail with a note that names the artifact of the whole."""
        if len(text) * 4 <= self.text_bytes_max:
            return text
        raw = text.encode(errors="replace")
        if len(raw) <= self.text_bytes_max:
            return text
        kept = self.keep(Blob(raw, TEXT))
        half = self.text_bytes_max // 2
        head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
        left_out = kept.size - 2 * half
        return f"{head}\n[… {left_out} bytes left out; the whole text is the artifact {kept.sha256} …]\n{tail}"

    def cut_json(self, value: JsonValue) -> JsonValue:
        """Return the same value with its texts cut."""
        match value:
            case str():
                return self.cut(value)
            case list():
                return [self.cut_json(part) for part in value]
            case dict():
                return {name: self.cut_json(part) for name, part in value.items()}
            case _:
                return value
