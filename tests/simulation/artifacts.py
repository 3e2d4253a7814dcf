"""What must hold of the artifact store: what an event names is there, what did not get there is told, and what nothing
names goes.
"""

from collections.abc import Iterator

from schemas.events import ToolCallFinished
from schemas.ids import ThreadKey
from tests.simulation.collecting import GRACE_SECONDS
from tests.simulation.invariants import Broken, Run, invariant
from tests.support.worlds.services import Judged


@invariant
def what_is_named_is_in_the_store(run: Run) -> Iterator[Broken]:
    """Of every record in the log, whatever came of it; also what lies aside is found."""
    store = run.world.artifacts
    for key, thread in run.threads.items():
        for seq, sha256, size in _named(thread):
            name = (key.tenant, sha256)
            found = store.objects.get(name) or store.aside.get(name)
            if found is None and run.collects and _put_in_time(run, key, seq, sha256) is None:
                continue
            if found is None or len(found.data) != size:
                yield Broken(f"#{seq} names {sha256} of {size} bytes, and the store has {found}", key)


@invariant
def what_is_named_is_never_deleted(run: Run) -> Iterator[Broken]:
    """Not since it was put for the event that names it; whether or not the same was put again later."""
    for key, thread in run.threads.items():
        for seq, sha256, _ in _named(thread):
            put_ms = _put_in_time(run, key, seq, sha256)
            deleted_ms = run.world.artifacts.deleted_ms.get((key.tenant, sha256), ())
            if put_ms is not None and any(at_ms > put_ms for at_ms in deleted_ms):
                yield Broken(f"#{seq} names {sha256}, which was deleted since", key)


@invariant
def what_nothing_names_is_collected(run: Run) -> Iterator[Broken]:
    """The last collections came after all else, a grace time apart."""
    if not run.collects:
        return
    named = {(key.tenant, sha256) for key, thread in run.threads.items() for _, sha256, _ in _named(thread)}
    gaps = {key.tenant for key in run.threads if run.is_set_aside(key)}
    for tenant, sha256 in [*run.world.artifacts.objects, *run.world.artifacts.aside]:
        if (tenant, sha256) not in named and tenant not in gaps:
            yield Broken(f"{tenant} still has {sha256}, which nothing names")


@invariant
def outputs_are_kept_or_told_to_be_lost(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        for event in thread.applied(ToolCallFinished):
            runs = [each for each in run.world.ledger.of(str(key), event.call) if each.attempt == event.attempt]
            left = runs[0].args.get("outputs", 0) if runs and event.outcome == "succeeded" else 0
            told = str(event.result).count("could not be kept")
            if left and len(event.artifacts) + told != left:
                yield Broken(f"{event.call} left {left}: {len(event.artifacts)} are named, {told} told to be lost", key)


def _named(thread: Judged) -> Iterator[tuple[int, str, int]]:
    for record, _, state in thread.records:
        for named in record.data.artifacts if isinstance(record.data, ToolCallFinished) else ():
            yield state.seq, named.sha256, named.size


def _put_in_time(run: Run, key: ThreadKey, seq: int, sha256: str) -> int | None:
    """When it was last put, or found to be there, before the record was stored; None where that was long before."""
    stored_ms = run.world.stored_ms[key, seq]
    put_ms = [at_ms for at_ms in run.world.artifacts.put_ms.get((key.tenant, sha256), ()) if at_ms <= stored_ms]
    return put_ms[-1] if put_ms and stored_ms - put_ms[-1] <= 1_000 * GRACE_SECONDS else None
