-- The model calls of a turn.
select step, status, attempts, failures, model, stop_reason, input_tokens, output_tokens, started_at, finished_at
from views.steps
where tenant = $1 and thread = $2 and turn = $3
order by step
