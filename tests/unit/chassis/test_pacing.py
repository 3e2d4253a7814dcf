from services.chassis.pacing import Pace


def test_a_quiet_reader_does_not_pause() -> None:
    pace = Pace(busy_records_per_second=1_500, pause_seconds=0.002)
    now = 100.0
    for _ in range(1_000):
        now += 0.01
        assert pace.took(12, now) == 0.0


def test_a_busy_reader_pauses_after_a_while_and_stops_when_it_is_quiet_again() -> None:
    pace = Pace(busy_records_per_second=1_500, pause_seconds=0.002)
    now = 100.0
    pauses = []
    for _ in range(1_000):
        now += 0.002
        pauses.append(pace.took(10, now))
    assert pauses[0] == 0.0
    assert pauses[-1] == 0.002
    assert pace.took(1, now + 1.0) == 0.0
