-- Null leaves a column as it is. The unknown calls come joined by commas.
update turns t set
    status = coalesce(c.status, t.status),
    outcome = coalesce(c.outcome, t.outcome),
    reason = coalesce(c.reason, t.reason),
    cancel_cause = coalesce(c.cancel_cause, t.cancel_cause),
    cancelled_at = coalesce(c.cancelled_at, t.cancelled_at),
    recovered_at = coalesce(c.recovered_at, t.recovered_at),
    recovered_by = coalesce(c.recovered_by, t.recovered_by),
    steps = coalesce(c.steps, t.steps),
    input_tokens = coalesce(c.input_tokens, t.input_tokens),
    output_tokens = coalesce(c.output_tokens, t.output_tokens),
    waited_ms = coalesce(c.waited_ms, t.waited_ms),
    ended_seq = coalesce(c.ended_seq, t.ended_seq),
    ended_at = coalesce(c.ended_at, t.ended_at),
    unknown_calls = coalesce(string_to_array(c.unknown_calls, ','), t.unknown_calls)
from unnest(
    $1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[],
    $9::timestamptz[], $10::text[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
    $16::timestamptz[], $17::text[]
) as c (
    tenant, thread, turn, status, outcome, reason, cancel_cause, cancelled_at, recovered_at, recovered_by,
    steps, input_tokens, output_tokens, waited_ms, ended_seq, ended_at, unknown_calls
)
where t.tenant = c.tenant and t.thread = c.thread and t.turn = c.turn
