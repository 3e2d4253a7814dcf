import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog

from services.chassis.process.telemetry import configure_logging
from tests.chaos.service_logs import failures


@contextmanager
def logged_to(monkeypatch: pytest.MonkeyPatch, log: Path) -> Iterator[None]:
    """What a service writes is what is read here, whatever its form comes to be."""
    written = io.BytesIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    with monkeypatch.context() as patched:
        patched.setattr("sys.stderr", SimpleNamespace(buffer=written, isatty=lambda: False))
        configure_logging("json", "ingest", "0")
        try:
            yield
        finally:
            structlog.reset_defaults()
            structlog.contextvars.clear_contextvars()
            root.handlers[:] = handlers
            root.setLevel(level)
    log.write_bytes(written.getvalue())


def test_what_ended_a_service_and_what_broke_a_request_are_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail() -> None:
        raise ValueError("no such shelf")

    with logged_to(monkeypatch, tmp_path / "ingest-0.log"):
        log = structlog.get_logger()
        for _ in range(2):
            try:
                fail()
            except ValueError as error:
                logging.getLogger("uvicorn.error").error("Exception in ASGI application\n", exc_info=error)
                log.error("service_failed", error=repr(error), exc_info=error)
        log.info("service_ended")
        log.warning("live_reader_failed", error="the broker is away")
        logging.getLogger("asyncio").warning("slow")
    (tmp_path / "runtime-1.log").write_bytes(b"Traceback (most recent call last):\n{}\n[]\n")

    found = [str(failure) for failure in failures(tmp_path)]
    assert len(found) == 2
    assert found[0].startswith("ingest-0 library_log: Exception in ASGI application ValueError(no such shelf) at ")
    assert found[1].startswith("ingest-0 service_failed: ValueError('no such shelf')")
    assert all("fail" in text and text.endswith("(2x)") for text in found)
