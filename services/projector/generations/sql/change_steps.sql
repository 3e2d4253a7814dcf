-- Null leaves a column as it is.
update steps t set
    status = coalesce(c.status, t.status),
    attempts = coalesce(c.attempts, t.attempts),
    failures = coalesce(c.failures, t.failures),
    model = coalesce(c.model, t.model),
    owner = coalesce(c.owner, t.owner),
    context_seq = coalesce(c.context_seq, t.context_seq),
    context_items = coalesce(c.context_items, t.context_items),
    context_hash = coalesce(c.context_hash, t.context_hash),
    tools_hash = coalesce(c.tools_hash, t.tools_hash),
    attempt_at = coalesce(c.attempt_at, t.attempt_at),
    error_kind = coalesce(c.error_kind, t.error_kind),
    error = coalesce(c.error, t.error),
    retriable = coalesce(c.retriable, t.retriable),
    retry_at = coalesce(c.retry_at, t.retry_at),
    finished_seq = coalesce(c.finished_seq, t.finished_seq),
    finished_at = coalesce(c.finished_at, t.finished_at),
    finished_attempt = coalesce(c.finished_attempt, t.finished_attempt),
    stop_reason = coalesce(c.stop_reason, t.stop_reason),
    response_id = coalesce(c.response_id, t.response_id),
    calls = coalesce(c.calls, t.calls),
    input_tokens = coalesce(c.input_tokens, t.input_tokens),
    output_tokens = coalesce(c.output_tokens, t.output_tokens),
    cached_tokens = coalesce(c.cached_tokens, t.cached_tokens),
    reasoning_tokens = coalesce(c.reasoning_tokens, t.reasoning_tokens)
from unnest(
    $1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::int[], $8::text[],
    $9::text[], $10::bigint[], $11::bigint[], $12::text[], $13::text[], $14::timestamptz[], $15::text[],
    $16::text[], $17::boolean[], $18::timestamptz[], $19::bigint[], $20::timestamptz[], $21::bigint[],
    $22::text[], $23::text[], $24::int[], $25::bigint[], $26::bigint[], $27::bigint[], $28::bigint[]
) as c (
    tenant, thread, turn, step, status, attempts, failures, model, owner, context_seq, context_items,
    context_hash, tools_hash, attempt_at, error_kind, error, retriable, retry_at, finished_seq, finished_at,
    finished_attempt, stop_reason, response_id, calls, input_tokens, output_tokens, cached_tokens,
    reasoning_tokens
)
where t.tenant = c.tenant and t.thread = c.thread and t.turn = c.turn and t.step = c.step
