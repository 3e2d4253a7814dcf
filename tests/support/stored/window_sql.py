"""The windows as plain SQL over `events` has them: what cells have to come to."""

from typing import Any

import asyncpg

Counts = dict[tuple[str, int], dict[str, int]]
"""By tenant and minute."""

COUNTED = """
with said as (
    select tenant, floor(extract(epoch from time) / 60)::bigint * 60000 as minute, type, effect, facts as f
    from views.events
), counted as (
    select tenant, minute, 'inputs' as name, (f ->> 'inputs')::bigint as value from said where f ? 'inputs'
    union all
    select tenant, minute, 'turns/' || (f ->> 'outcome'), 1 from said where f ? 'turn_ms'
    union all
    select tenant, minute, 'failures/turn/' || coalesce(f ->> 'reason', 'other'), 1
    from said where f ? 'turn_ms' and f ->> 'outcome' = 'failed'
    union all
    select tenant, minute, 'failures/step/' || (f ->> 'error_kind'), 1 from said where f ? 'error_kind'
    union all
    select tenant, minute, 'failures/tool_call/' || (f ->> 'outcome'), 1
    from said where f ? 'tool_ms' and f ->> 'outcome' in ('failed', 'timed_out')
    union all
    select tenant, minute, 'failures/tool_call/lost', 1 from said where type = 'tool_call.lost' and effect = 'applied'
    union all
    select tenant, minute, 'tool_calls/' || (f ->> 'tool'), 1 from said where f ? 'tool_ms'
    union all
    select tenant, minute, 'tool_ms/' || (f ->> 'tool'), (f ->> 'tool_ms')::bigint from said where f ? 'tool_ms'
    union all
    select tenant, minute, 'responses/' || (f ->> 'model'), 1 from said where f ? 'input_tokens'
    union all
    select tenant, minute, kind || '/' || (f ->> 'model'), (f ->> kind)::bigint
    from said, unnest(array['input_tokens', 'output_tokens', 'cached_tokens', 'reasoning_tokens']) as kind
    where (f ->> kind)::bigint > 0
    union all
    select tenant, minute, 'times/turn', 1 from said where f ? 'turn_ms'
    union all
    select tenant, minute, 'times/tool', 1 from said where f ? 'tool_ms'
    union all
    select tenant, minute, standing, (f ->> standing)::bigint
    from said, unnest(array['waiting', 'unknown']) as standing
    where f ? standing
)
select tenant, minute, name, sum(value)::bigint from counted group by 1, 2, 3 having sum(value) <> 0
"""

CELLS = """
with cells as (
    select tenant, extract(epoch from minute)::bigint * 1000 as minute, waiting, unknown, counts
    from threadlog.window_cells
), counted as (
    select tenant, minute, regexp_replace(c.key, '^(turn|tool)_times/.*', 'times/\\1') as name, c.value::bigint as value
    from cells, jsonb_each_text(counts) as c
    union all
    select tenant, minute, 'waiting', waiting from cells
    union all
    select tenant, minute, 'unknown', unknown from cells
)
select tenant, minute, name, sum(value)::bigint from counted group by 1, 2, 3 having sum(value) <> 0
"""


async def counts(connection: asyncpg.Connection, query: str) -> Counts:
    found: Counts = {}
    for tenant, minute, name, value in await connection.fetch(query):
        found.setdefault((tenant, minute), {})[name] = value
    return found


async def cells(connection: asyncpg.Connection) -> list[tuple[Any, ...]]:
    """Every byte of them."""
    rows = await connection.fetch(
        'select tenant, minute, "partition", counted_to, waiting, unknown, counts::text from threadlog.window_cells '
        'order by tenant, minute, "partition"'
    )
    return [tuple(row) for row in rows]
