"""Large views: one thread with 100,000 events among 12,000 short threads of four tenants, as rows that a generation could hold.

Rows are made by the database; they are of the right shape and number, and mean nothing.
"""

import asyncpg

TENANT = "acme"
THREAD = "long"
EVENTS = 100_000
"""Of the long thread; 16 to a turn, as it mostly goes."""
THREADS = 12_000
"""The others, each with one turn."""
TURNS = EVENTS // 16
BATCH_ROWS = 5_000
"""Between two summaries, in seqs."""

_STATE = """
    json_build_object('seq', {seq}, 'status', 'active', 'queue', json_build_array(), 'calls', json_build_object())
"""
_STATEMENTS = (
    f"""
    insert into thread_states
    select 'tenant-' || n % 3, 'thread-' || n, 'thread-events', n % 12, n, 1, n % 20 = 0,
        case when n % 1000 = 0 then 'seq 1: no' end, {_STATE.format(seq=2)}
    from generate_series(1, {THREADS}) n
    union all
    select '{TENANT}', '{THREAD}', 'thread-events', 3, {EVENTS}, 1, true, null, {_STATE.format(seq=EVENTS)}
    """,
    f"""
    insert into threads (tenant, thread, "partition", status, labels, archived, created_at, updated_at, seq, turn,
        last_turn, queued, waiting_calls, unknown_calls, config, config_seq, lineage_kind, parent, parent_seq, depth,
        plan_version)
    select case when n % 3 = 0 then '{TENANT}' else 'tenant-' || n % 3 end, 'thread-' || n, n % 12, 'active',
        '{{"team": "a"}}', n % 7 = 0, '2026-01-01'::timestamptz + n * interval '1 minute',
        '2026-02-01'::timestamptz + n * interval '1 minute', 2, case when n % 20 = 0 then 1 end, 1, 0, 0, 0,
        '{{"model": "m"}}', 1, case when n % 50 = 0 then 'child' end, case when n % 50 = 0 then '{THREAD}' end,
        case when n % 50 = 0 then n end, case when n % 50 = 0 then 1 else 0 end,
        case when n % 3 = 0 then 1 end
    from generate_series(1, {THREADS}) n
    union all
    select '{TENANT}', '{THREAD}', 3, 'active', '{{}}', false, '2026-01-01', '2026-03-01', {EVENTS}, {TURNS}, {TURNS}, 0,
        0, 0, '{{"model": "m"}}', 1, null, null, null, 0, 1
    """,
    f"""
    insert into turns (tenant, thread, turn, status, outcome, inputs, model, agent_version, config_seq, base, started_seq,
        started_at, steps, input_tokens, output_tokens, waited_ms, ended_seq, ended_at)
    select '{TENANT}', '{THREAD}', n, 'ended', 'completed', array['i' || n], 'm', '1', 1, 0, n * 16 - 14,
        '2026-01-01'::timestamptz + n * interval '1 minute', 2, 10, 10, 0, n * 16,
        '2026-01-01'::timestamptz + n * interval '1 minute'
    from generate_series(1, {TURNS}) n
    union all
    select 'tenant-' || n % 3, 'thread-' || n, 1, 'ended', 'completed', array['i1'], 'm', '1', 1, 0, 1, now(), 1, 1, 1, 0,
        2, now()
    from generate_series(1, {THREADS}) n
    """,
    f"""
    insert into steps (tenant, thread, turn, step, status, attempts, failures, inputs, model, owner, context_seq,
        context_items, context_hash, tools_hash, started_seq, started_at, attempt_at, finished_seq)
    select '{TENANT}', '{THREAD}', n, s, 'finished', 1, 0, '{{}}', 'm', 'r', n * 16, 10, 'h', 'h', n * 16, now(), now(),
        n * 16
    from generate_series(1, {TURNS}) n, generate_series(1, 2) s
    union all
    select 'tenant-' || n % 3, 'thread-' || n, 1, s, 'finished', 1, 0, '{{}}', 'm', 'r', 1, 1, 'h', 'h', 1, now(), now(), 1
    from generate_series(1, {THREADS}) n, generate_series(1, 2) s
    """,
    f"""
    insert into tool_calls (tenant, thread, call, turn, step, index, tool, args, call_hash, status, outcome, proposed_seq,
        proposed_at, attempts, lost_attempts, settled_seq, resolution)
    select '{TENANT}', '{THREAD}', n || '.1.' || i, n, 1, i, 'shell', '{{}}', 'h', 'settled', 'succeeded', n * 16 - 12,
        now(), 1, 0, n * 16 - 12 + 4 * i + 4, case when n % 10 = 0 then 'succeeded' end
    from generate_series(1, {TURNS}) n, generate_series(0, 1) i
    union all
    select case when n % 2 = 0 then '{TENANT}' else 'tenant-' || n % 3 end, 'thread-' || n, '1.1.' || i, 1, 1, i, 'shell',
        '{{}}', 'h', case when n % 50 = 0 then 'waiting' when n % 70 = 0 then 'unknown' else 'settled' end, null, 1, now(),
        1, 0, 2, null
    from generate_series(1, {THREADS}) n, generate_series(0, 1) i
    """,
    f"""
    insert into items (tenant, thread, seq, part, kind, turn, step, place, content, digest, input, call, compacted_at)
    select '{TENANT}', '{THREAD}', n, 0,
        case n % 16 when 1 then 'message' when 4 then 'tool_call' when 8 then 'tool_result' else 'message' end,
        n / 16 + 1, case when n % 16 <> 1 then 1 end, case n % 16 when 1 then n + 1 else n end, '{{"text": "x"}}', 'd',
        case when n % 16 = 1 then 'i' || n end, case when n % 16 in (4, 8) then n / 16 + 1 || '.1.0' end,
        case when n <= {EVENTS - BATCH_ROWS} then (n / {BATCH_ROWS} + 1) * {BATCH_ROWS} end
    from generate_series(1, {EVENTS}) n
    where n % 16 in (1, 4, 8, 9, 14)
    union all
    select '{TENANT}', '{THREAD}', n * {BATCH_ROWS}, 1, 'summary', n * {BATCH_ROWS} / 16, null, n * {BATCH_ROWS},
        jsonb_build_object('through_seq', n * {BATCH_ROWS} - 1), 'd', null, null,
        case when n < {EVENTS // BATCH_ROWS - 1} then (n + 1) * {BATCH_ROWS} end
    from generate_series(1, {EVENTS // BATCH_ROWS - 1}) n
    union all
    select 'tenant-' || n % 3, 'thread-' || n, s, 0, 'message', 1, null, s, '{{"text": "x"}}', 'd',
        case when s = 1 then 'i1' end, null, null
    from generate_series(1, {THREADS}) n, generate_series(1, 5) s
    """,
    f"""
    insert into plans (tenant, thread, version, status, tasks, proposed_seq, proposed_at, proposed_by)
    select case when n % 3 = 0 then '{TENANT}' else 'tenant-' || n % 3 end, 'thread-' || n, 1,
        case when n % 90 = 0 then 'waiting' else 'in_force' end, '[]', 1, now(), 'service:runtime'
    from generate_series(1, {THREADS}) n
    union all
    select '{TENANT}', '{THREAD}', 1, 'in_force', '[]', 1, now(), 'service:runtime'
    """,
    f"""
    insert into tasks (tenant, thread, version, task, place, title, depends_on, left_out, status, changed_seq)
    select case when n % 3 = 0 then '{TENANT}' else 'tenant-' || n % 3 end, 'thread-' || n, 1, 'task-' || i, i, 't', '{{}}',
        false, 'pending', 1
    from generate_series(1, {THREADS}) n, generate_series(0, 2) i
    """,
    f"""
    insert into artifacts (tenant, thread, seq, part, kind, effect, sha256, size, media_type, name, at)
    select '{TENANT}', '{THREAD}', n * 16, 0, case when n % 4 = 0 then 'after' else 'tool_call' end, 'applied', 'sha-' || n % 500, 1, 'text/plain',
        'file-' || n % 8, now()
    from generate_series(1, {TURNS}) n
    union all
    select 'tenant-' || n % 3, 'thread-' || n, 1, 0, 'recorded', 'applied', 'sha-' || n % 500, 1, 'text/plain', 'x', now()
    from generate_series(1, {THREADS}) n
    """,
    f"""
    insert into usage (tenant, thread, seq, kind, effect, turn, step, attempt, model, response_id, at, input_tokens,
        output_tokens, cached_tokens, reasoning_tokens)
    select '{TENANT}', '{THREAD}', n * 8, 'step', 'applied', n, 1, 1, 'm' || n % 3, 'r-' || n,
        '2026-01-01'::timestamptz + n * interval '1 minute', 10, 1, 0, 0
    from generate_series(1, {2 * TURNS}) n
    union all
    select case when n % 2 = 0 then '{TENANT}' else 'tenant-' || n % 3 end, 'thread-' || n, 1, 'step', 'applied', 1, 1, 1,
        'm' || n % 3, 'r-' || n, '2026-01-01'::timestamptz + n * interval '2 minutes', 10, 1, 0, 0
    from generate_series(1, {THREADS}) n
    """,
    f"""
    insert into events (tenant, thread, seq, "partition", "offset", id, type, time, actor, source, data_hash, chain, effect,
        data)
    select '{TENANT}', '{THREAD}', n, 3, n, md5('{THREAD}' || n)::uuid,
        case when n % 16 = 1 then 'input.submitted' when n % 16 = 0 then 'turn.ended' when n % 4000 = 8 then 'thread.rewound'
            when n % 4000 = 9 then 'artifact.recorded' else 'step.started' end,
        '2026-01-01'::timestamptz + n * interval '1 second',
        case when n % 16 = 1 then 'user:ann' else 'service:runtime' end, 'runtime/0', 'h', 'c', 'applied', '{{"mode": "queue"}}'
    from generate_series(1, {EVENTS}) n
    union all
    select 'tenant-' || n % 3, 'thread-' || n, s, n % 12, {EVENTS} + 16 * n + s, md5(n || ':' || s)::uuid, 'input.submitted',
        now(), case when s = 1 then 'user:ann' else 'service:runtime' end, 'ingest/0', 'h', 'c', 'applied', '{{}}'
    from generate_series(1, {THREADS}) n, generate_series(1, 16) s
    """,
    f"""
    insert into dead_letters (topic, "partition", "offset", tenant, thread, reason, at, headers, value_bytes, fault)
    select 'thread-events', n % 12, n, case when n % 2 = 0 then '{TENANT}' end, case when n % 2 = 0 then '{THREAD}' end, 'no',
        '2026-01-01'::timestamptz + n * interval '1 second', '[]', 1, 'data'
    from generate_series(1, {THREADS}) n
    """,
    """
    insert into positions ("partition", topic, next_offset, owner, owner_epoch, cluster_id, updated_at)
    select n, 'thread-events', 1000000, 'p', 1, 'cluster', now() from generate_series(0, 11) n
    """,
)


async def fill(connection: asyncpg.Connection, schema: str) -> None:
    """As somebody whom no policy binds."""
    async with connection.transaction():
        await connection.execute(f"set local search_path to {schema}")
        for statement in _STATEMENTS:
            into, select, rows = statement.partition("select ")
            # One by one: in a union, the text of a literal would not take the type of its column.
            for some in rows.split("union all\n    select "):
                await connection.execute(into + select + some)
    for table in await connection.fetch("select tablename from pg_tables where schemaname = $1", schema):
        await connection.execute(f"vacuum (analyze) {schema}.{table[0]}")
