"""What Postgres says of the places where a thread can be forked, from the rows in memory."""

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import JsonValue

from schemas.ids import EventId, ThreadKey
from services.chassis.threads.contexts import PARENTS_MAX
from services.ingest.commands.forks import ForkAt, FoundPoint, MadeFork
from services.projector.columns import THREADS
from services.projector.projections import events
from tests.support.memory.tables import EVENT_DATA, EVENT_TYPE, Tables

_CHAIN, _EFFECT = events.COLUMNS.index("chain"), events.COLUMNS.index("effect")
_NEVER = 2**62


def find_point(tables: Tables, key: ThreadKey, at: ForkAt) -> FoundPoint | None:
    stored = tables.state(key)
    if stored is None or not stored.state.exists or () not in tables.of("threads", key):
        return None  # the last where the database refuses its first record
    state, row = stored.state, _thread(tables, key)
    named = tables.of("turns", key).get((at.turn,))
    asked = at.seq or (None if named is None else named.get("ended_seq")) or state.seq
    turn = _open_turn(tables, key, asked)
    seq = asked if turn is None else _settled(tables, key, turn, asked)
    record = tables.of("events", key).get((seq,))
    return FoundPoint(
        newest=state.seq,
        quarantined=stored.quarantined,
        status=row["status"],
        depth=row["depth"],
        config_seq=row["config_seq"],
        config=orjson.loads(row["config"]),
        forks=_forks(tables, key),
        is_there=at.turn is None or named is not None,
        asked=asked,
        turn=turn,
        seq=seq,
        chain=None if record is None else record[_CHAIN],
    )


def find_configs(tables: Tables, key: ThreadKey, seq: int, most: int) -> Sequence[JsonValue]:
    found = [
        row[EVENT_DATA]
        for (at,), row in sorted(tables.of("events", key).items())
        if at <= seq and row[EVENT_TYPE] in {"thread.created", "thread.configured"} and row[_EFFECT] == "applied"
    ]
    return [None if data is None else orjson.loads(data) for data in found[:most]]


def find_made(tables: Tables, key: ThreadKey, event_id: EventId) -> MadeFork | None:
    first = tables.of("commands", key).get((event_id,))
    if first is None:
        return None
    data = {} if first[EVENT_DATA] is None else orjson.loads(first[EVENT_DATA])
    lineage = data.get("lineage") or {}
    return MadeFork(lineage.get("parent"), lineage.get("seq"))


def _thread(tables: Tables, key: ThreadKey) -> dict[str, Any]:
    return dict(zip(THREADS.columns, tables.of("threads", key)[()], strict=True))


def _open_turn(tables: Tables, key: ThreadKey, asked: int) -> int | None:
    last = max(
        ((row["started_seq"], turn, row) for (turn,), row in tables.of("turns", key).items() if row["started_seq"] <= asked),
        default=None,
        key=lambda found: found[0],
    )  # fmt: skip
    return last[1] if last is not None and last[2].get("ended_seq", _NEVER) > asked else None


def _settled(tables: Tables, key: ThreadKey, turn: int, asked: int) -> int:
    started = {
        step: row for (of, step), row in tables.of("steps", key).items() if of == turn and row["started_seq"] <= asked
    }
    if not started:
        return asked
    step, row = max(started.items())
    ends = [row.get("finished_seq", _NEVER)]
    ends += [
        call.get("settled_seq", _NEVER)
        for call in tables.of("tool_calls", key).values()
        if (call["turn"], call["step"]) == (turn, step)
    ]
    return asked if max(ends) <= asked else row["started_seq"] - 1


def _forks(tables: Tables, key: ThreadKey) -> int:
    row = _thread(tables, key)
    for forks in range(PARENTS_MAX):
        parent = key._replace(thread=row["parent"])
        if row["lineage_kind"] != "fork" or () not in tables.of("threads", parent):
            return forks
        row = _thread(tables, parent)
    return PARENTS_MAX
