from services.chassis.process.pacing import Pace


def key(number: int) -> bytes:
    return f"acme/{number}".encode()


def test_one_thread_after_the_other_is_not_busy_however_fast() -> None:
    pace = Pace(busy_threads=8, pause_seconds=0.002)
    now = 100.0
    for number in range(1_000):
        now += 0.001
        assert pace.took([key(number // 10)] * 3, now) == 0.0


def test_many_threads_at_once_are_busy_until_they_are_quiet_again() -> None:
    pace = Pace(busy_threads=8, pause_seconds=0.002)
    now = 100.0
    pauses = []
    for number in range(1_000):
        now += 0.002
        pauses.append(pace.took([key(number % 16)], now))
    assert pauses[0] == 0.0
    assert pauses[-1] == 0.002
    assert pace.took([key(1)], now + 1.0) == 0.0
