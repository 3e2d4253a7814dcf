def fold_events_per_second() -> float:
    return 0.0
