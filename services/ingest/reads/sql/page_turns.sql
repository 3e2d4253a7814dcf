select
    turn, status, outcome, reason, inputs, model, agent_version, config_seq, base, started_seq, started_at, cancel_cause,
    cancelled_at, recovered_at, recovered_by, steps, input_tokens, output_tokens, waited_ms, ended_seq, ended_at, unknown_calls
from views.turns
where tenant = $1 and thread = $2 and turn > $3::bigint
order by turn
limit $4
