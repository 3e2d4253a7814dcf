-- Every column that can change, in full; null leaves only labels and config as they are.
update threads t set
    status = c.status,
    title = c.title,
    archived = c.archived,
    updated_at = c.updated_at,
    seq = c.seq,
    turn = c.turn,
    last_turn = c.last_turn,
    last_outcome = c.last_outcome,
    queued = c.queued,
    waiting_calls = c.waiting_calls,
    unknown_calls = c.unknown_calls,
    config_seq = c.config_seq,
    plan_version = c.plan_version,
    labels = coalesce(c.labels, t.labels),
    config = coalesce(c.config, t.config)
from unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::boolean[], $6::timestamptz[], $7::bigint[],
    $8::bigint[], $9::bigint[], $10::text[], $11::int[], $12::int[], $13::int[], $14::bigint[], $15::bigint[],
    $16::jsonb[], $17::jsonb[]
) as c (
    tenant, thread, status, title, archived, updated_at, seq, turn, last_turn, last_outcome, queued,
    waiting_calls, unknown_calls, config_seq, plan_version, labels, config
)
where t.tenant = c.tenant and t.thread = c.thread
