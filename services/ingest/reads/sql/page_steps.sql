select
    turn, step, status, attempts, failures, inputs, model, context_seq, context_items, context_hash, tools_hash,
    started_seq, started_at, attempt_at, error_kind, error, retriable, retry_at, finished_seq, finished_at,
    finished_attempt, stop_reason, response_id, calls, input_tokens, output_tokens, cached_tokens, reasoning_tokens
from views.steps
where tenant = $1 and thread = $2 and (turn, step) > ($3::bigint, $4::bigint)
order by turn, step
limit $5
