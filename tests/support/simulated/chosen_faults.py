"""A simulated log that loses what the test chooses."""

from collections.abc import Sequence

from services.chassis.log.port import Outgoing, TopicPartition
from tests.support.simulated.log import Fate, Faults


class ChosenFaults(Faults):
    """Batches with a record of one of these kinds meet this fate, for each kind so often."""

    def __init__(self, fate: Fate = "request_lost", **kinds: int) -> None:
        """`turn_started=2` means `turn.started`."""
        super().__init__(retry_seconds=1.0)
        self.chosen = fate
        self.kinds = {name.replace("_", ".", 1): count for name, count in kinds.items()}

    def fate(self, tp: TopicPartition, records: Sequence[Outgoing]) -> Fate:
        for record in records:
            kind = dict(record.headers).get("ce_type", b"").decode().removeprefix("dev.threadlog.").removesuffix(".v1")
            if self.kinds.get(kind, 0) > 0:
                self.kinds[kind] -= 1
                return self.chosen
        return "stored"
