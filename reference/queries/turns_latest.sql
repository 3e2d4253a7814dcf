-- A thread's turns, latest first.
select turn, status, outcome, reason, started_at, ended_at, steps, input_tokens, output_tokens
from views.turns
where tenant = $1 and thread = $2 and turn < $3
order by turn desc
limit 100
