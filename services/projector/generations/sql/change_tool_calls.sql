-- Null leaves a column as it is.
update tool_calls t set
    status = coalesce(c.status, t.status),
    outcome = coalesce(c.outcome, t.outcome),
    args = coalesce(c.args, t.args),
    call_hash = coalesce(c.call_hash, t.call_hash),
    effect = coalesce(c.effect, t.effect),
    pool = coalesce(c.pool, t.pool),
    approval_reason = coalesce(c.approval_reason, t.approval_reason),
    approval_requested_at = coalesce(c.approval_requested_at, t.approval_requested_at),
    approval_expires_at = coalesce(c.approval_expires_at, t.approval_expires_at),
    decision = coalesce(c.decision, t.decision),
    decided_by = coalesce(c.decided_by, t.decided_by),
    decided_at = coalesce(c.decided_at, t.decided_at),
    decision_reason = coalesce(c.decision_reason, t.decision_reason),
    attempts = coalesce(c.attempts, t.attempts),
    lost_attempts = coalesce(c.lost_attempts, t.lost_attempts),
    dispatched_at = coalesce(c.dispatched_at, t.dispatched_at),
    deadline_at = coalesce(c.deadline_at, t.deadline_at),
    timeout_ms = coalesce(c.timeout_ms, t.timeout_ms),
    idempotency_key = coalesce(c.idempotency_key, t.idempotency_key),
    claim = coalesce(c.claim, t.claim),
    executor = coalesce(c.executor, t.executor),
    started_at = coalesce(c.started_at, t.started_at),
    lease_seconds = coalesce(c.lease_seconds, t.lease_seconds),
    evidence = coalesce(c.evidence, t.evidence),
    resolution = coalesce(c.resolution, t.resolution),
    resolved_by = coalesce(c.resolved_by, t.resolved_by),
    note = coalesce(c.note, t.note),
    milliseconds = coalesce(c.milliseconds, t.milliseconds),
    changes = coalesce(c.changes, t.changes),
    artifacts = coalesce(c.artifacts, t.artifacts),
    settled_seq = coalesce(c.settled_seq, t.settled_seq),
    settled_at = coalesce(c.settled_at, t.settled_at),
    settled_by = coalesce(c.settled_by, t.settled_by),
    resolved_at = coalesce(c.resolved_at, t.resolved_at)
from unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::jsonb[], $7::text[], $8::text[],
    $9::text[], $10::text[], $11::timestamptz[], $12::timestamptz[], $13::text[], $14::text[],
    $15::timestamptz[], $16::text[], $17::bigint[], $18::int[], $19::timestamptz[], $20::timestamptz[],
    $21::bigint[], $22::text[], $23::uuid[], $24::text[], $25::timestamptz[], $26::bigint[], $27::text[],
    $28::text[], $29::text[], $30::text[], $31::bigint[], $32::jsonb[], $33::jsonb[], $34::bigint[],
    $35::timestamptz[], $36::uuid[], $37::timestamptz[]
) as c (
    tenant, thread, call, status, outcome, args, call_hash, effect, pool, approval_reason,
    approval_requested_at, approval_expires_at, decision, decided_by, decided_at, decision_reason, attempts,
    lost_attempts, dispatched_at, deadline_at, timeout_ms, idempotency_key, claim, executor, started_at,
    lease_seconds, evidence, resolution, resolved_by, note, milliseconds, changes, artifacts, settled_seq,
    settled_at, settled_by, resolved_at
)
where t.tenant = c.tenant and t.thread = c.thread and t.turn = split_part(c.call, '.', 1)::bigint
    and t.step = split_part(c.call, '.', 2)::bigint and t.index = split_part(c.call, '.', 3)::int
