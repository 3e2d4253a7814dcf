select
    call, turn, step, index, tool, args, malformed, call_hash, status, outcome, effect, pool, proposed_seq, proposed_at,
    approval_reason, approval_requested_at, approval_expires_at, decision, decided_by, decided_at, decision_reason,
    attempts, lost_attempts, dispatched_at, deadline_at, timeout_ms, claim, started_at, evidence, resolution,
    resolved_by, note, milliseconds, changes, artifacts, settled_seq, settled_at, result
from views.tool_calls
where tenant = $1 and thread = $2 and (turn, step, index) > ($3::bigint, $4::bigint, $5::bigint)
order by turn, step, index
limit $6
