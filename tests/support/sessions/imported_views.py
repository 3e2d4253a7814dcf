"""What an import came to in the views, without what depends on how it came about: ids, seqs, numbers of turns."""

from typing import Any, NamedTuple

import asyncpg
import orjson

THREADS = """
select thread, labels ->> 'session' as session, title, status, labels::text as labels, archived, last_outcome,
    unknown_calls, queued, lineage_kind, parent, parent_seq, parent_call, depth
from views.threads
where tenant = $1
order by thread
"""
TURNS = """
select t.outcome, t.steps, coalesce(t.reason, '') as reason
from views.turns t
where t.tenant = $1 and t.thread = $2
    and exists (
        select
        from views.items i
        where i.tenant = t.tenant and i.thread = t.thread and i.turn = t.turn and i.rewound_at is null
    )
order by t.turn
"""
ITEMS = """
select kind, content::text as content
from views.items
where tenant = $1 and thread = $2 and place <= $3 and dropped is null
    and (rewound_at is null or rewound_at > $3) and (compacted_at is null or compacted_at > $3)
order by kind <> 'summary', place, seq, part
"""
UNKNOWN = "select tool, args::text as args from views.unknown_calls where tenant = $1 and thread = $2 order by 1, 2"
USAGE = """
select kind, coalesce(sum(input_tokens), 0)::bigint, coalesce(sum(output_tokens), 0)::bigint,
    coalesce(sum(cached_tokens), 0)::bigint, count(distinct response_id)
from views.usage
where tenant = $1 and counted
group by kind
order by kind
"""
UNTIMELY = """
select thread, seq, type, effect, reason, source, time::text, id::text
from views.events
where tenant = $1 and (
    effect <> 'applied' or id in (select id from views.events where tenant = $1 group by thread, id having count(*) > 1)
)
order by thread, seq
"""
NOT_SHOWN = frozenset({"call", "through_seq", "state"})
NEWEST = 2**53


class CameTo(NamedTuple):
    threads: dict[str, Any]
    """By session; of each its forks and children are told by theirs."""
    usage: list[tuple[Any, ...]]


async def came_to(connection: asyncpg.Connection, tenant: str) -> CameTo:
    rows = {row["thread"]: row for row in await connection.fetch(THREADS, tenant)}
    found: dict[str, Any] = {}
    for row in rows.values():
        key = (tenant, row["thread"])
        parent = rows[row["parent"]] if row["parent"] is not None else None
        found[row["session"]] = {
            "row": [row[name] for name in ("title", "status", "labels", "archived", "last_outcome", "queued", "depth")],
            "parent": (row["lineage_kind"], parent["session"]) if parent is not None else None,
            "call": row["parent_call"],
            "turns": [tuple(turn) for turn in await connection.fetch(TURNS, *key)],
            "context": await _context(connection, tenant, rows, row["thread"], NEWEST),
            "unknown": [tuple(call) for call in await connection.fetch(UNKNOWN, *key)],
        }
    assert len(found) == len(rows), "a session has several threads"
    return CameTo(found, [tuple(row) for row in await connection.fetch(USAGE, tenant)])


def differences(found: CameTo, wanted: CameTo, *passed_over: str) -> list[str]:
    told = [] if found.usage == wanted.usage else [f"usage: {found.usage} instead of {wanted.usage}"]
    for session in sorted(found.threads.keys() | wanted.threads.keys()):
        one, other = found.threads.get(session), wanted.threads.get(session)
        if one is None or other is None:
            told.append(f"{session}: only in one")
            continue
        names = [name for name in one if name not in passed_over and one[name] != other[name]]
        told += [f"{session}, {name}: {one[name]} instead of {other[name]}" for name in names]
    return told


async def _context(
    connection: asyncpg.Connection, tenant: str, rows: dict[str, Any], thread: str, through: int
) -> list[tuple[str, dict[str, Any]]]:
    row = rows[thread]
    items = await connection.fetch(ITEMS, tenant, thread, through)
    own = [(item["kind"], _shown(item["content"])) for item in items]
    if row["lineage_kind"] != "fork" or (own and own[0][0] == "summary"):
        return own
    return await _context(connection, tenant, rows, row["parent"], row["parent_seq"]) + own


def _shown(content: str) -> dict[str, Any]:
    return {name: value for name, value in orjson.loads(content).items() if name not in NOT_SHOWN}


async def happened_once(connection: asyncpg.Connection, tenant: str) -> None:
    """Every event of an import is in the log once, and took effect."""
    found = [tuple(row) for row in await connection.fetch(UNTIMELY, tenant)]
    assert found == [], found


async def records(connection: asyncpg.Connection, tenant: str) -> list[tuple[Any, ...]]:
    """Of everything that could change: how many rows, and which."""
    found: list[tuple[Any, ...]] = []
    for view, shown in (
        ("threads", "seq, status, last_turn, unknown_calls"),
        ("turns", "turn, status, outcome"),
        ("items", "seq, part, kind, digest, rewound_at, compacted_at"),
        ("tool_calls", "turn, step, index, status, outcome"),
        ("usage", "seq, response_id, input_tokens, output_tokens, counted"),
        ("events", "seq, id, data_hash, chain, effect"),
    ):
        rows = await connection.fetch(
            f"select thread, {shown} from views.{view} where tenant = $1 order by thread, {shown}", tenant
        )
        found += [(view, *row) for row in rows]
    return found
