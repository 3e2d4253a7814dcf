"""Timeouts of Kafka that follow from the session timeout, so that nobody sets values that do not fit each other."""

import pytest

from services.chassis.settings import Settings


@pytest.mark.parametrize(
    ("session_ms", "heartbeat_ms", "request_ms"),
    [(3_000, 750, 15_000), (6_000, 1_500, 15_000), (10_000, 1_500, 25_000), (45_000, 1_500, 112_500)],
)
def test_heartbeats_and_requests_fit_the_session(session_ms: int, heartbeat_ms: int, request_ms: int) -> None:
    settings = Settings(kafka_session_timeout_ms=session_ms)
    assert settings.kafka_heartbeat_interval_ms == heartbeat_ms
    assert settings.kafka_request_timeout_ms == request_ms
