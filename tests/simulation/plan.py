"""What a seed decides before anything happens. Seeds are many and small: what is rare in one is common in thousands."""

import random
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tests.support.simulated.log import Faults


@dataclass(frozen=True, slots=True)
class Plan:
    threads: int
    acts: int
    """What a client does to its thread, at most."""
    seconds: float
    """Until everything that goes wrong is mended."""
    partitions: int
    runtimes: int
    executors: int
    ingests: int
    projectors: int
    zombie_runtime: bool
    """A runtime in a group of its own, that believes to own every partition as well."""
    zombie_executor: bool
    idempotent: bool
    """Whether producers are: otherwise a retry may store a batch twice."""
    moves_every: float
    """Seconds from one thing that goes wrong to the next, on average."""
    ack_lost: float
    request_lost: float
    late: float
    append_seconds_max: float
    fetch_seconds_max: float
    poll_records_max: int
    rebalance_seconds_max: float
    heartbeat_seconds_max: float
    database_seconds_max: float
    tool_trouble: float
    """How often an executor dies or stands still right before a tool's effect, and right after it."""
    model_trouble: float
    """The same for a runtime whose model answers."""
    append_trouble: float
    """The same for whoever has appended something that was stored, and is not acknowledged yet."""
    watchers: int
    calls_max: int
    """That one executor runs at once."""
    dispatch_wait_seconds: int
    lease_seconds: int
    tool_seconds: tuple[float, ...]
    """How long tools take: one of these."""
    approval: Literal["never", "on_effect", "always"]
    on_recovery: Literal["resume", "interrupt"]
    hasty: bool
    """Whether people act at once on what comes to the log, and twice on what they saw some time ago."""
    refused: float
    """How many of the records the database refuses to store as they are."""
    view_commands: int
    """Of people who build the views anew, go back to others, or drop some."""
    rollups: int
    """Workers of the operations windows."""
    spawns: float
    """How many of the calls that a model proposes begin a child thread."""
    plans: float
    """How many of them propose a plan."""
    plan_approval: Literal["never", "always"]
    forks: float
    """How many of a client's acts fork a thread, rewind it, or have it compacted."""
    outputs: float
    """How many of the calls leave something for the artifact store."""
    context_tokens: int
    """Beyond so many a context is compacted; 0 is never."""
    collects: int
    """How often the artifact store is collected while things go wrong."""

    @classmethod
    def drawn(cls, rng: random.Random, choices: dict[str, Any]) -> "Plan":
        is_log_at_fault = rng.random() < 0.5
        plan = cls(
            threads=rng.choice([1, 1, 1, 2, 2, 3]),
            acts=rng.randint(1, 5),
            seconds=rng.choice([4, 4, 7, 7, 12, 12, 25]),
            partitions=rng.choice([1, 1, 2]),
            runtimes=rng.choice([1, 1, 2]),
            executors=rng.choice([1, 1, 2]),
            ingests=rng.choice([1, 2]),
            projectors=rng.choice([1, 1, 2]),
            zombie_runtime=rng.random() < 0.15,
            zombie_executor=rng.random() < 0.15,
            idempotent=rng.random() < 0.5,
            moves_every=rng.choice([0.3, 0.8, 2]),
            ack_lost=rng.choice([0, 0.02, 0.1]) if is_log_at_fault else 0,
            request_lost=rng.choice([0, 0.02, 0.1]) if is_log_at_fault else 0,
            late=rng.choice([0, 0.02, 0.1]) if is_log_at_fault else 0,
            append_seconds_max=rng.choice([0, 0.01, 0.2]),
            fetch_seconds_max=rng.choice([0, 0.01, 0.2, 1]),
            poll_records_max=rng.choice([0, 0, 1, 3]),
            rebalance_seconds_max=rng.choice([0, 1]),
            heartbeat_seconds_max=rng.choice([0, 1, 3]),
            database_seconds_max=rng.choice([0, 0.005, 0.1]),
            tool_trouble=rng.choice([0, 0.1, 0.3]),
            model_trouble=rng.choice([0, 0.1, 0.2]),
            append_trouble=rng.choice([0, 0.01, 0.04]),
            watchers=rng.choice([1, 1, 2]),
            calls_max=rng.choice([3, 3, 1]),
            dispatch_wait_seconds=rng.choice([30, 30, 1]),
            lease_seconds=rng.choice([4, 4, 2]),
            tool_seconds=rng.choice([(0, 0, 0.2, 1, 5), (0, 0, 0.2, 1, 5), (1, 5, 5)]),
            approval=rng.choice(["never", "never", "on_effect", "always"]),
            on_recovery=rng.choice(["resume", "resume", "interrupt"]),
            hasty=rng.random() < 0.3,
            refused=rng.choice([0, 0, 0, 0.01, 0.05]),
            view_commands=rng.choice([0, 0, 1, 2, 5]),
            rollups=rng.choice([0, 0, 1, 2]),
            spawns=rng.choice([0, 0, 0.1, 0.3]),
            plans=rng.choice([0, 0, 0.1, 0.25]),
            plan_approval=rng.choice(["never", "never", "always"]),
            forks=rng.choice([0, 0, 0.2, 0.5]),
            context_tokens=rng.choice([0, 0, 0, 60]),
            outputs=rng.choice([0, 0, 0.3]),
            collects=rng.choice([0, 0, 0, 5]),
        )
        return cls(**{**asdict(plan), **choices})

    def faults(self, seed: int) -> Faults:
        return Faults(
            seed,
            ack_lost=self.ack_lost,
            request_lost=self.request_lost,
            late=self.late,
            append_seconds_max=self.append_seconds_max,
            fetch_seconds_max=self.fetch_seconds_max,
            poll_records_max=self.poll_records_max,
            rebalance_seconds_max=self.rebalance_seconds_max,
            heartbeat_seconds_max=self.heartbeat_seconds_max,
        )

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())
