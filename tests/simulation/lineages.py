"""What must hold of threads that were forked, rewound and compacted."""

from collections.abc import Iterator, Mapping, Sequence

from schemas.events import AnswerText, ContextCompacted, StepFinished, StepStarted, ThreadCreated, ThreadRewound
from schemas.ids import ThreadId, ThreadKey
from schemas.transcript import Item, is_settled
from services.chassis.threads.contexts import UNBOUNDED
from tests.simulation.contexts import context_at
from tests.simulation.invariants import Broken, Run, invariant
from tests.support.memory.views import own_at


@invariant
def forks_begin_at_settled_records(run: Run) -> Iterator[Broken]:
    """Of their parent, whose chain and configuration they take on."""
    for key, thread in run.threads.items():
        lineage = thread.state.lineage
        if lineage is None or lineage.kind != "fork":
            continue
        parent = run.threads[ThreadKey(key.tenant, ThreadId(lineage.parent))]
        if not 0 < lineage.seq <= len(parent.records):
            yield Broken(f"it is forked at #{lineage.seq} of a thread with {len(parent.records)} records", key)
            continue
        at = parent.records[lineage.seq - 1][2]
        [created] = thread.applied(ThreadCreated)
        if not is_settled(at):
            yield Broken(f"it is forked at #{lineage.seq}, where something was under way", key)
        if lineage.chain != at.chain:
            yield Broken(f"it names another chain for #{lineage.seq} of its parent", key)
        if at.config is None or created.config.model_dump() != at.config.model_dump():
            yield Broken(f"it has {created.config}, and its parent had {at.config}", key)


@invariant
def what_left_a_context_is_told_to_no_model(run: Run) -> Iterator[Broken]:
    """Answers of turns that were rewound, and those that a summary stands for. Where a thread was both rewound and
    compacted, a rewind may bring back what a summary stood for.
    """
    for key, thread in run.threads.items():
        both = bool(thread.applied(ThreadRewound)) and bool(thread.applied(ContextCompacted))
        answers: dict[str, tuple[int, int]] = {}
        gone: set[str] = set()
        shown: Mapping[str, set[str]] = {}
        for record, verdict, after in thread.records:
            data = record.data
            if verdict.effect != "applied" or both:
                continue
            if isinstance(data, ThreadRewound):
                gone |= {text for text, (turn, _) in answers.items() if turn > data.to_turn}
            elif isinstance(data, ContextCompacted):
                gone |= {text for text, (_, seq) in answers.items() if seq <= data.through_seq}
            elif isinstance(data, StepStarted):
                shown = {**shown, record.data_hash: set(gone)}
            elif isinstance(data, StepFinished):
                texts = [item.text for item in data.items if isinstance(item, AnswerText)]
                heard = _texts(run.model.heard[texts[0]]) if texts else set()
                wrong = heard & shown.get(data.started, set())
                if wrong:
                    yield Broken(f"#{after.seq} answers what had left the context: {wrong}", key)
                answers |= dict.fromkeys(texts, (data.turn, after.seq))


def _texts(items: Sequence[Mapping[str, object]]) -> set[str]:
    """Of the assistant."""
    found: set[str] = set()
    for item in items:
        content = item.get("content")
        if item["kind"] == "message" and item.get("role") == "assistant" and isinstance(content, list):
            found |= {str(block["text"]) for block in content if isinstance(block, dict) and "text" in block}
    return found


@invariant
def requests_for_summaries_come_to_an_end(run: Run) -> Iterator[Broken]:
    for key, thread in run.threads.items():
        if thread.state.compaction_requested and thread.state.status == "active":
            yield Broken("a summary is asked for, and none comes", key)
        for event in thread.applied(ContextCompacted):
            if event.summary not in run.model.summaries:
                yield Broken(f"its summary is {event.summary}, which no model has given", key)


@invariant
def rows_show_what_the_log_shows(run: Run) -> Iterator[Broken]:
    """Of each thread now, and of each that was forked as of there."""
    tables = run.world.store.tables
    assert tables is not None
    places = {(key, thread.state.seq) for key, thread in run.threads.items()}
    for key, thread in run.threads.items():
        lineage = thread.state.lineage
        if lineage is not None and lineage.kind == "fork":
            places.add((ThreadKey(key.tenant, ThreadId(lineage.parent)), lineage.seq))
    for key, seq in sorted(places):
        shown = own_at(tables, key, seq, UNBOUNDED)
        if shown is None:
            if not run.is_set_aside(key):
                yield Broken(f"its rows do not come to #{seq}", key)
            continue
        expected = [item for item in context_at(run.threads, key, seq) if item.thread is None]
        if _named(shown.items) != _named(expected):
            yield Broken(f"as of #{seq} its rows show {_named(shown.items)}, the log {_named(expected)}", key)
        lineage = run.threads[key].state.lineage
        is_fork = lineage is not None and lineage.kind == "fork"
        if (shown.parent is not None) != (is_fork and not any(item.kind == "summary" for item in expected)):
            yield Broken(f"as of #{seq} its rows and the log differ in whether it inherits", key)


def _named(items: Sequence[Item]) -> list[tuple[int, int, str, str]]:
    return [(item.seq, item.part, item.kind, item.digest) for item in items]
