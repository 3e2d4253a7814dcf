-- Null leaves a column as it is.
update tasks t set
    status = coalesce(c.status, t.status),
    child = coalesce(c.child, t.child),
    result = coalesce(c.result, t.result),
    changed_seq = coalesce(c.changed_seq, t.changed_seq),
    started_at = coalesce(c.started_at, t.started_at),
    ended_at = coalesce(c.ended_at, t.ended_at)
from unnest(
    $1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::jsonb[], $8::bigint[],
    $9::timestamptz[], $10::timestamptz[]
) as c (
    tenant, thread, version, task, status, child, result, changed_seq, started_at, ended_at
)
where t.tenant = c.tenant and t.thread = c.thread and t.version = c.version and t.task = c.task
