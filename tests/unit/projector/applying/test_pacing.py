from services.projector.applying.pacing import Pacing


def pacing() -> Pacing:
    return Pacing(interval_seconds=0.2, interval_idle_seconds=0.02, busy_records_per_second=2_000)


def test_the_first_record_and_one_after_a_quiet_time_are_committed_at_once() -> None:
    pace = pacing()
    assert pace.wait_seconds(100.0) == 0
    pace.took(1, 100.0)
    assert pace.wait_seconds(100.005) > 0
    assert pace.wait_seconds(100.02) == 0


def test_under_load_commits_are_an_interval_apart() -> None:
    pace, now = pacing(), 100.0
    for _ in range(10):
        pace.took(100, now)
        now += 0.02
    assert pace.rate > 2_000
    assert 0.17 < pace.wait_seconds(now) < 0.2
    for _ in range(10):
        pace.took(1_000, now)
        now += 0.2
    assert pace.wait_seconds(now - 0.1) > 0


def test_load_is_forgotten_after_a_quiet_time() -> None:
    pace = pacing()
    for step in range(10):
        pace.took(1_000, 100 + step * 0.2)
    pace.took(1, 110.0)
    assert pace.rate < 2_000
    assert pace.wait_seconds(110.0) <= 0.02


def test_a_little_traffic_is_no_load() -> None:
    pace = pacing()
    for step in range(100):
        pace.took(20, 100 + step * 0.02)
    assert pace.wait_seconds(100 + 99 * 0.02) <= 0.02
