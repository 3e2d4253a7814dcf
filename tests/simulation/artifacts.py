"""What must hold of the artifact store: what an event names is there, and what did not get there is told."""

from collections.abc import Iterator

from schemas.events import ToolCallFinished
from tests.simulation.invariants import Broken, Run, invariant


@invariant
def what_is_named_is_in_the_store(run: Run) -> Iterator[Broken]:
    """Of every record in the log, whatever came of it."""
    for key, thread in run.threads.items():
        for record, _, state in thread.records:
            for named in record.data.artifacts if isinstance(record.data, ToolCallFinished) else ():
                found = run.world.artifacts.objects.get((key.tenant, named.sha256))
                if found is None or len(found.data) != named.size:
                    yield Broken(f"#{state.seq} names {named}, and the store has {found}", key)


@invariant
def outputs_are_kept_or_told_to_be_lost(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        for event in thread.applied(ToolCallFinished):
            runs = [each for each in run.world.ledger.of(str(key), event.call) if each.attempt == event.attempt]
            left = runs[0].args.get("outputs", 0) if runs and event.outcome == "succeeded" else 0
            told = str(event.result).count("could not be kept")
            if left and len(event.artifacts) + told != left:
                yield Broken(f"{event.call} left {left}: {len(event.artifacts)} are named, {told} told to be lost", key)
