-- Null leaves a column as it is.
update plans t set
    status = coalesce(c.status, t.status),
    decided_seq = coalesce(c.decided_seq, t.decided_seq),
    decided_at = coalesce(c.decided_at, t.decided_at),
    decided_by = coalesce(c.decided_by, t.decided_by),
    decision_reason = coalesce(c.decision_reason, t.decision_reason),
    superseded_seq = coalesce(c.superseded_seq, t.superseded_seq),
    superseded_at = coalesce(c.superseded_at, t.superseded_at)
from unnest(
    $1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::timestamptz[], $7::text[], $8::text[],
    $9::bigint[], $10::timestamptz[]
) as c (
    tenant, thread, version, status, decided_seq, decided_at, decided_by, decision_reason, superseded_seq, superseded_at
)
where t.tenant = c.tenant and t.thread = c.thread and t.version = c.version
