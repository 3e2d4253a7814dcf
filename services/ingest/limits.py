"""Limits of the service that no deployment sets, in one frozen object, so that tests can set others.

Each default is a constant that stands, with its reason, beside the code that uses it. A limit that a deployment sets is
in `settings`; a limit that nothing varies, not even a test, is a constant alone and not listed here.
"""

from dataclasses import dataclass, field
from typing import Final

from schemas.topics import RECORD_BYTES_MAX
from services.ingest.commands.commands import RECENT_COMMANDS_MAX
from services.ingest.commands.existence import VIEWS_WAIT_SECONDS
from services.ingest.files.recorded_changes import DIFF_BYTES_MAX, DIFF_FILE_BYTES_MAX
from services.ingest.reads.at_least import AT_LEAST_WAIT_SECONDS
from services.ingest.reads.reads import PAGE_DEFAULT, PAGE_MAX, THREADS_LOOKED_AT_MAX
from services.ingest.reads.state_at import StateLimits
from services.ingest.streams.event_stream import HEARTBEAT_SECONDS, SEND_SECONDS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestLimits:
    """What `__main__` gives to the parts of the service beside the settings."""

    record_bytes_max: int = RECORD_BYTES_MAX
    """Bytes of one record: what the topic takes; tests take less."""
    recent_commands_max: int = RECENT_COMMANDS_MAX
    views_wait_seconds: float = VIEWS_WAIT_SECONDS
    at_least_wait_seconds: float = AT_LEAST_WAIT_SECONDS
    page_default: int = PAGE_DEFAULT
    page_max: int = PAGE_MAX
    threads_looked_at_max: int = THREADS_LOOKED_AT_MAX
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    send_seconds_max: float = SEND_SECONDS_MAX
    diff_file_bytes_max: int = DIFF_FILE_BYTES_MAX
    diff_bytes_max: int = DIFF_BYTES_MAX
    state: StateLimits = field(default_factory=StateLimits)


LIMITS: Final = IngestLimits()
"""The limits that every deployment has."""
