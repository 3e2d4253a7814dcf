import pytest
from prometheus_client import CollectorRegistry, Counter

from services.chassis.log.metrics import LogCollector, LogCounts
from services.chassis.process.probes import Probes


def ask(probes: Probes, request: str) -> tuple[int, str]:
    head, _, body = probes._answer(f"{request} HTTP/1.1\r\nhost: x\r\n\r\n".encode()).decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def test_live_and_ready(registry: CollectorRegistry) -> None:
    reasons: dict[str, str | None] = {"live": None, "ready": "waits for its partitions"}
    probes = Probes(registry, not_ready=lambda: reasons["ready"], not_live=lambda: reasons["live"])
    assert ask(probes, "GET /livez") == (200, "ok\n")
    assert ask(probes, "GET /readyz?verbose") == (503, "waits for its partitions\n")
    reasons.update(live="the loop stands", ready=None)
    assert ask(probes, "GET /livez") == (503, "the loop stands\n")
    assert ask(probes, "GET /readyz") == (200, "ok\n")


def test_metrics_show_what_was_counted(registry: CollectorRegistry) -> None:
    counts = LogCounts()
    LogCollector(counts, registry)
    Counter("turns", "turns", registry=registry).inc()
    counts.outbox.records = 5
    counts.count_failed_commit()
    probes = Probes(registry, not_ready=lambda: None, not_live=lambda: None)
    status, body = ask(probes, "GET /metrics")
    assert status == 200
    assert {
        "turns_total 1.0",
        "threadlog_log_records_appended_total 5.0",
        "threadlog_log_commits_failed_total 1.0",
    } <= set(body.splitlines())
    assert ask(probes, "HEAD /metrics") == (200, "")


@pytest.mark.parametrize(
    ("request_line", "status"), [("GET /", 404), ("POST /livez", 405), ("GET", 404), ("", 405), ("GET /livez/x", 404)]
)
def test_other_requests(registry: CollectorRegistry, request_line: str, status: int) -> None:
    probes = Probes(registry, not_ready=lambda: None, not_live=lambda: None)
    assert ask(probes, request_line)[0] == status
